"""Dumps in the layouts of slime and miles, made here: read, and never run."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glm52_tbench2.analysis.forensics.dumps import DumpSource, is_dump
from glm52_tbench2.analysis.forensics.examine import examine
from glm52_tbench2.analysis.forensics.verdict import verdict

PROMPT, SAID = 10, 120


def rollout(step: int, **changes: Any) -> dict[str, Any]:
    """2 groups of 4; the first group's failures say one loop, ever less likely to the trainer."""
    rng = np.random.default_rng(step)
    samples = []
    for place in range(8):
        group, failed = place // 4, place % 2
        loop = np.resize(np.arange(100, 107), SAID)
        said = loop if failed and not group else rng.integers(0, 5000, SAID)
        row = {
            "group_index": 2 * step + group,
            "index": 8 * step + place,
            "prompt": [{"role": "user", "content": f"task {group}"}],
            "tokens": [*range(PROMPT), *said.tolist()],
            "response_length": SAID,
            "reward": float(not failed),
            "loss_mask": [1] * SAID,
            "weight_versions": [str(step)],
            "rollout_log_probs": (-rng.random(SAID)).tolist(),
            "rollout_routed_experts": np.zeros((3, 2, 2), np.int32),
            "status": "truncated" if failed else "completed",
            "metadata": {"task_id": f"task-{group}"},
        } | changes
        samples.append({name: value for name, value in row.items() if value is not None})
    return {"rollout_id": step, "samples": samples}


def trained(found: dict[str, Any], growth: float) -> dict[str, Any]:
    """What the trainer's ranks dump of it."""
    rows = found["samples"]
    scores = []
    for place, row in enumerate(rows):
        loop = place in (1, 3)
        shift = -0.05 * growth if loop else 0.001
        scores.append(torch.tensor(row["rollout_log_probs"]) + shift)
    return {
        "rollout_id": found["rollout_id"],
        "rank": 0,
        "rollout_data": {
            "tokens": [torch.tensor(row["tokens"]) for row in rows],
            "response_lengths": [SAID] * 8,
            "sample_indices": [row["index"] for row in rows],
            "log_probs": scores,
            "advantages": [torch.full((SAID,), row["reward"] - 0.5) for row in rows],
        },
    }


def saved(folder: Path, steps: int, with_training: bool = True, **changes: Any) -> Path:
    for name in ("rollout_data", "train_data"):
        (folder / name).mkdir(parents=True)
    for step in range(steps):
        found = rollout(step, **changes)
        torch.save(found, folder / "rollout_data" / f"{step}.pt")
        if with_training:
            said = trained(found, 1.25 ** max(0, step - 8))
            torch.save(said, folder / "train_data" / f"{step}_0.pt")
    return folder


def test_published_mechanism_in_dumps(tmp_path: Path) -> None:
    """miles' dump_details: rollout and trainer, joined by index."""
    found = examine(DumpSource(saved(tmp_path, 24)))
    said = verdict(found)
    assert said.name == "repeated_negative_turns"
    assert said.account.tasks == ["task-0"]
    assert len(found.families[0].steps) == 24
    drifts = [move.drift for move in found.families[0].moves]
    assert drifts[-1] == pytest.approx(0.05 * 1.25**15, rel=1e-4)
    assert said.experiment is None  # no config, so no run of ours to change
    assert any("evaluations" in one for one in said.unknown)


def test_rollouts_alone(tmp_path: Path) -> None:
    """slime's save_debug_rollout_data: what is missing is named, what is there is told."""
    folder = saved(tmp_path, 12, with_training=False, metadata=None, loss_mask=None)
    found = examine(DumpSource(folder / "rollout_data"))
    said = verdict(found)
    assert len(found.families[0].steps) == 12
    assert found.families[0].advantage == pytest.approx(-0.5)
    assert found.families[0].tasks[0].startswith("prompt ")
    assert found.families[0].drift_share is None
    assert any("Log-probs" in one for one in said.unknown)
    assert any("minus the mean" in one for one in found.warnings)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rollout_log_probs": None}, "rollout_log_probs is missing"),
        ({"reward": {"strange": 1}}, "no reward that is a number"),
        ({"weight_versions": ["1", "2"]}, "staleness is unknown"),
        ({"response_length": None}, "lack response_length"),
        ({"response_length": 10**6}, "contradict their response_length"),
        ({"loss_mask": [1]}, "contradict their response_length"),
    ],
)
def test_missing_fields(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    found = examine(DumpSource(saved(tmp_path, 2, with_training=False, **changes)))
    assert any(told in one for one in found.warnings), found.warnings
    verdict(found)


def test_scores_of_shared_sequences_are_left_out(tmp_path: Path) -> None:
    folder = saved(tmp_path, 1)
    path = folder / "train_data" / "0_0.pt"
    data = torch.load(path)
    data["rollout_data"]["log_probs"] = [one[:60] for one in data["rollout_data"]["log_probs"]]
    torch.save(data, path)
    source = DumpSource(folder)
    step = source.read(0)
    assert step is not None and step.trainer is None
    assert any("share a sequence" in one for one in source.warnings)


class _Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch executed",)


def test_foreign_code_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = saved(tmp_path / "run", 2)
    torch.save({"samples": [_Evil()]}, folder / "rollout_data" / "2.pt")
    (folder / "rollout_data" / "3.pt").write_bytes(
        (folder / "rollout_data" / "1.pt").read_bytes()[:500]
    )
    found = examine(DumpSource(folder))
    assert found.measures.steps == [0, 1]
    assert found.unread == [2, 3]
    assert len([one for one in found.warnings if "not readable" in one]) == 2
    assert not (tmp_path / "executed").exists()


def test_what_is_a_dump(tmp_path: Path) -> None:
    assert not is_dump(tmp_path)
    (tmp_path / "eval_3.pt").touch()
    assert not is_dump(tmp_path)
    (tmp_path / "data_3.pt").touch()
    assert is_dump(tmp_path)
    assert DumpSource(tmp_path).steps() == [3]
