"""Dumps in the layouts of slime and miles, made here: read, and never run."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glm52_tbench2.analysis.forensics.dumps import DumpSource, is_dump
from glm52_tbench2.analysis.forensics.examine import examine
from glm52_tbench2.analysis.forensics.scan import scan
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


def changed(folder: Path, name: str, change: Callable[[Any], object]) -> DumpSource:
    """With the samples of step 0, or its train dump, changed in place."""
    path = folder / name
    content = torch.load(path, weights_only=False)
    change(content["samples" if "samples" in content else "rollout_data"])
    torch.save(content, path)
    return DumpSource(folder)


@pytest.mark.parametrize("value", [None, "absent"])
@pytest.mark.parametrize("with_training", [True, False])
def test_unknown_groups_are_no_groups(
    tmp_path: Path, value: str | None, with_training: bool
) -> None:
    """Neither is each sample one of its own, nor are all samples one; nor is A made of them."""

    def ungroup(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            row["group_index"] = None
            if value == "absent":
                del row["group_index"]

    folder = saved(tmp_path, 1, with_training)
    source = changed(folder, "rollout_data/0.pt", ungroup)
    step = source.read(0)
    assert step is not None and step.groups is None
    assert (step.advantages is None) is (not with_training)
    assert len(set(step.sample_ids)) == 8
    (warning,) = source.warnings
    assert "group_index is missing" in warning


def test_no_token_is_known_to_be_of_the_newest_weights(tmp_path: Path) -> None:
    step = DumpSource(saved(tmp_path, 1)).read(0)
    assert step is not None
    found = scan(step)
    assert found.age is not None and found.aged_from_newest


def _without_index(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        row.pop("index")


def _all_one_index(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        row["index"] = 0


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("rollout_data/0.pt", _without_index),
        ("rollout_data/0.pt", _all_one_index),
        ("train_data/0_0.pt", lambda data: data.pop("sample_indices")),
        ("train_data/0_0.pt", lambda data: data.update(sample_indices=[None] * 8)),
        ("train_data/0_0.pt", lambda data: data.update(sample_indices=[0, 1])),
        ("train_data/0_0.pt", lambda data: data.update(tokens=None)),
        ("train_data/0_0.pt", lambda data: data.update(tokens=[5] * 8)),
    ],
)
def test_both_dumps_are_joined_by_what_there_is(
    tmp_path: Path, name: str, change: Callable[[Any], object]
) -> None:
    folder = saved(tmp_path, 1)
    whole = DumpSource(folder).read(0)
    source = changed(folder, name, change)
    step = source.read(0)
    assert whole is not None and step is not None
    np.testing.assert_array_equal(step.trainer, whole.trainer)
    np.testing.assert_array_equal(step.advantages, whole.advantages)
    assert source.warnings == []


def test_what_is_of_no_sample_is_named(tmp_path: Path) -> None:
    def other(data: dict[str, Any]) -> None:
        data["sample_indices"][2] = 900
        data["tokens"][2] = torch.tensor([5, 6])

    source = changed(saved(tmp_path, 1), "train_data/0_0.pt", other)
    step = source.read(0)
    assert step is not None and step.trainer is not None and step.advantages is not None
    assert np.flatnonzero(np.isnan(step.advantages)).tolist() == [2]
    (warning,) = source.warnings
    assert warning.startswith("train_data/0_0.pt: samples 2 are of no sample of the rollouts")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokens", 5),
        ("tokens", "text"),
        ("tokens", [1.5] * 130),
        ("tokens", [-1] * 130),
        ("tokens", [2**40] * 130),
        ("response_length", "abc"),
        ("response_length", [1]),
        ("loss_mask", 1),
        ("loss_mask", ["a"] * SAID),
    ],
)
def test_a_malformed_sample_is_left_out_and_named(tmp_path: Path, key: str, value: object) -> None:
    source = changed(
        saved(tmp_path, 1), "rollout_data/0.pt", lambda rows: rows[3].update({key: value})
    )
    step = source.read(0)
    assert step is not None
    assert [one.rpartition("-")[2] for one in step.sample_ids] == list("0124567")
    assert step.trainer is not None and np.isfinite(step.trainer[step.mask]).all()
    assert source.warnings[0].startswith("rollout_data/0.pt: samples 3 ")
    scan(step)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("rollout_log_probs", 0.5, "samples 3 have other rollout_log_probs"),
        ("rollout_log_probs", ["a"] * SAID, "samples 3 have other rollout_log_probs"),
        ("rollout_log_probs", [[0.5]] * SAID, "samples 3 have other rollout_log_probs"),
        ("weight_versions", 3, "staleness is unknown"),
        ("weight_versions", [str(10**30)], "staleness is unknown"),
        ("reward", "high", "no reward that is a number"),
        ("reward", float("nan"), "no reward that is a number"),
        ("reward", 10**400, "no reward that is a number"),
        ("reward", torch.zeros(2), "no reward that is a number"),
    ],
)
def test_a_malformed_field_is_unknown_and_its_sample_is_read(
    tmp_path: Path, key: str, value: object, told: str
) -> None:
    source = changed(
        saved(tmp_path, 1), "rollout_data/0.pt", lambda rows: rows[3].update({key: value})
    )
    step = source.read(0)
    assert step is not None and len(step.sample_ids) == 8
    assert told in source.warnings[0]
    scan(step)


@pytest.mark.parametrize(
    ("key", "change", "lost"),
    [
        ("log_probs", lambda values: values[:5], [5, 6, 7]),
        ("log_probs", lambda values: None, range(8)),
        ("log_probs", lambda values: [*values[:7], torch.tensor(0.5)], [7]),
        ("advantages", lambda values: [1.0] * 8, range(8)),
        ("advantages", lambda values: [None, *values[1:]], [0]),
    ],
)
def test_malformed_rows_of_a_train_dump(
    tmp_path: Path, key: str, change: Callable[[Any], Any], lost: list[int]
) -> None:
    source = changed(
        saved(tmp_path, 1), "train_data/0_0.pt", lambda data: data.update({key: change(data[key])})
    )
    step = source.read(0)
    assert step is not None
    told = [one for one in source.warnings if one.startswith("train_data/0_0.pt: samples ")]
    assert len(told) == 1 and f"have {key} that are not numbers" in told[0]
    kept = step.trainer if key == "log_probs" else step.advantages
    if len(lost) == 8:  # A is then made of rewards
        assert kept is None or key == "advantages"
    else:
        assert kept is not None
        unknown = np.isnan(kept) if key == "advantages" else _unscored(step)
        assert np.flatnonzero(unknown).tolist() == lost


def _unscored(step: Any) -> Any:
    missing = np.isnan(step.trainer) & step.mask
    return np.add.reduceat(missing, step.offsets[:-1]) > 0


def test_files_of_no_samples_are_named(tmp_path: Path) -> None:
    folder = saved(tmp_path, 2)
    torch.save({"samples": [3, "text"]}, folder / "rollout_data" / "0.pt")
    torch.save({"other": 1}, folder / "train_data" / "1_0.pt")
    source = DumpSource(folder)
    assert source.read(0) is None
    step = source.read(1)
    assert step is not None and step.trainer is None
    told = " ".join(source.warnings)
    assert "rollout_data/0.pt has no sample that can be read" in told
    assert "train_data/1_0.pt holds no rollout_data" in told


def test_folders_are_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, listed, glob = DumpSource(saved(tmp_path, 4)), [], Path.glob

    def noted(path: Path, pattern: str) -> Iterator[Path]:
        listed.append(path.name)
        return glob(path, pattern)

    monkeypatch.setattr(Path, "glob", noted)
    assert all(source.read(step) for step in source.steps())
    assert sorted(listed) == ["rollout_data", "train_data"]


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
