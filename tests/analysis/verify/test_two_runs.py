"""Two runs that differ in one place: verify must find it, and say where."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glm52_tbench2.config import metrics_log
from glm52_tbench2.config.compose import load_run_config
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.identity import load_identity, save_identity

from .runs import (
    STEPS,
    Change,
    changed,
    checkpoint,
    file_of,
    first_generated,
    rewrite,
    set_in,
    stamp,
    told,
)


def test_a_run_made_twice_is_one(first: Path, second: Path) -> None:
    code, text = told(first, second)
    assert code == 0, text
    assert "Bit-identical: 3 batches (18 samples" in text
    assert "2 evaluations" in text
    assert "weights and optimizer state after step 3" in text


def test_times_and_the_load_of_the_machine_are_no_difference(first: Path, copy: Path) -> None:
    def slower(rows: list[dict]) -> None:
        for name in ("generate_s", "sandbox_s", "verify_s", "total_s"):
            rows[0][name] += 1
        for name in ("generate_s", "exec_s", "cached_tokens"):
            rows[0]["turns"][0][name] += 1

    rewrite(copy, "rollouts", 2, slower)
    stamp(copy, "rollouts", 1, "stats", '{"wall_s": 99.0}')
    metrics = metrics_log.read(copy)["driver"][2]
    cost = {"time/rollout_s": 9.0, "rollout/tokens_per_s": 9.0, "rollout/replaced/sandbox": 1.0}
    metrics_log.append(copy, 2, "driver", {**metrics, **cost})
    (copy / "checkpoints/step_000003/.metadata").write_bytes(b"other index")
    assert told(first, copy)[0] == 0


def move_bits(rows: list[dict], column: str) -> None:
    """The least change of a float32 there is, in the second sample."""
    at = first_generated(rows[1]) if "loss_mask" in rows[1] else int(np.argmax(rows[1][column]))
    at = at or int(np.flatnonzero(rows[1][column])[0])
    rows[1][column][at] = float(np.nextafter(np.float32(rows[1][column][at]), np.float32(-9)))


def other_weights(run_dir: Path) -> None:
    folder = run_dir / "checkpoints" / "step_000003"
    shutil.rmtree(folder)
    checkpoint(folder, STEPS)
    (folder / "__0_0.distcp").write_bytes(b"weightz")
    stable = json.loads((folder / "STABLE").read_text())
    stable["files"]["__0_0.distcp"]["sha256"] = hashlib.sha256(b"weightz").hexdigest()
    (folder / "STABLE").write_text(json.dumps(stable))


def other_metric(source: str, name: str, value: float) -> Change:
    def change(run_dir: Path) -> None:
        metrics = metrics_log.read(run_dir)[source][2]
        metrics_log.append(run_dir, 2, source, {**metrics, name: value})

    return change


def with_turn(name: str, value: object) -> Change:
    def change(rows: list[dict]) -> None:
        rows[3]["turns"][0][name] = value

    return changed("rollouts", 2, change)


PARTS: dict[str, tuple[Change, list[str]]] = {
    "log-prob": (
        changed("rollouts", 2, lambda rows: move_bits(rows, "rollout_logprobs")),
        ["step 2, in the batch", "sample 000002-0-1 (task ", "turn 1, token ", "(generated)",
         "rollout_logprobs -", "1 of 6 samples differ", "100.0%"],
    ),
    "task": (set_in("rollouts", 1, 0, "task_id", "other"), ["step 1, in the batch", "'other'"]),
    "reward": (
        set_in("rollouts", 3, 5, "reward", 0.5), ["step 3, in the batch", "reward", "| 0.5"]
    ),
    "end": (set_in("rollouts", 3, 5, "end_reason", "x"), ["end_reason", "| 'x'"]),
    "advantage": (
        set_in("rollouts", 3, 5, "advantage", 9.0), ["sample 000003-1-2", "advantage", "| 9.0"]
    ),
    "error": (set_in("rollouts", 3, 5, "error", "x"), ["error: None | 'x'"]),
    "command": (with_turn("command", "ls"), ["sample 000002-1-0", "turn 1, command", "| 'ls'"]),
    "observation": (with_turn("observation", "no"), ["turn 1, observation", "| 'no'"]),
    "trainer": (
        changed("train", 2, lambda rows: move_bits(rows, "trainer_logprobs")),
        ["step 2, in the trainer, on a batch that is the same", "train/step_000002.parquet",
         "sample 000002-0-1 (task ", "trainer_logprobs -", "(generated)"],
    ),
    "entropy": (changed("train", 2, lambda rows: move_bits(rows, "entropy")), ["entropy "]),
    "weights": (
        other_weights,
        ["step 3, in the update", "checkpoints/step_000003/__0_0.distcp: sha256"],
    ),
    "batch metric": (
        other_metric("driver", "rollout/reward_std", 0.1),
        ["step 2, in the metrics of a batch", "rollout/reward_std: ", "| 0.1"],
    ),
    "trainer metric": (
        other_metric("trainer", "trainer/grad_norm", 0.1),
        ["step 2, in the trainer's metrics", "trainer/grad_norm: ", "1 of "],
    ),
    "new metric": (other_metric("trainer", "trainer/new", 0.1), ["trainer/new: absent | 0.1"]),
    "evaluation": (
        set_in("eval", 0, 2, "reward", 0.5), ["step 0, in the evaluation", "eval/step_000000"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", PARTS)
def test_runs_part_where_one_was_changed(first: Path, copy: Path, kind: str) -> None:
    change, said = PARTS[kind]
    change(copy)
    code, text = told(first, copy)
    assert code == 1
    for part in said:
        assert part in text, text
    assert "must be bit-identical: a fault, unless" in text


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_a_changed_token_is_found_wherever_it_is(
    first: Path, second: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from(["rollouts", "eval"]))
    step = data.draw(st.sampled_from([0, STEPS] if kind == "eval" else [1, 2, 3]))
    run = Path(shutil.copytree(second, tmp_path_factory.mktemp("flip") / "run"))
    rows = pq.read_table(file_of(run, kind, step)).to_pylist()
    row = data.draw(st.integers(0, len(rows) - 1))
    at = data.draw(st.integers(0, len(rows[row]["tokens"]) - 1))
    old = rows[row]["tokens"][at]
    new = data.draw(st.integers(0, 2**31 - 1).filter(lambda token: token != old))

    def change(rows: list[dict]) -> None:
        rows[row]["tokens"][at] = new

    rewrite(run, kind, step, change)
    code, text = told(first, run)
    assert code == 1
    assert f"They part at step {step}, " in text
    assert f"{kind}/step_{step:06d}.parquet, sample {rows[row]['sample_id']} " in text
    assert f"token {at} (" in text
    assert f"tokens {old} | {new}" in text


def test_the_cause_is_told_before_its_effects(first: Path, copy: Path) -> None:
    """A change of step 2's batch, of its advantages, and of everything that follows from it."""
    other_weights(copy)
    PARTS["trainer"][0](copy)
    PARTS["trainer metric"][0](copy)
    set_in("rollouts", 2, 0, "advantage", 9.0)(copy)
    PARTS["log-prob"][0](copy)
    code, text = told(first, copy, everything=True)
    assert code == 1
    places = [line for line in text.splitlines() if line.startswith("  ")]
    assert [place.split(",")[0].strip() for place in places] == [
        "rollouts/step_000002.parquet",
        "train/step_000002.parquet",
        "metrics.jsonl",
        "checkpoints/step_000003/__0_0.distcp: sha256 "
        + " | ".join(hashlib.sha256(w).hexdigest()[:12] for w in (b"weights", b"weightz")),
    ]
    assert "rollout_logprobs" in places[0] and "advantage" not in places[0]
    only_first = told(first, copy)[1]
    assert places[0] in only_first and places[1] not in only_first


def write_weights(run_dir: Path, tensors: dict[str, tuple[str, np.ndarray]]) -> None:
    """weights/version_000003, in the layout of safetensors."""
    header, data = {}, b""
    for name, (dtype, values) in tensors.items():
        span = [len(data), len(data) + values.nbytes]
        header[name] = {"dtype": dtype, "shape": values.shape, "data_offsets": span}
        data += values.tobytes()
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    folder = run_dir / "weights" / "version_000003"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model-00001.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.mark.parametrize(
    ("changed_in", "said"),
    [
        ("", "; optimizer state alone"),
        ("norm", "; norm[2]: 1 | 2"),
        ("expert", "; expert[1, 2]: 1 | 2"),
        ("scale", "; scale[0]"),
    ],
)
def test_the_first_weight_that_differs_is_told(
    first: Path, copy: Path, tmp_path: Path, changed_in: str, said: str
) -> None:
    tensors = {
        "norm": ("F32", np.ones(4, np.float32)),
        "expert": ("BF16", np.full((2, 3), 0x3F80, np.uint16)),
        "scale": ("F8_E8M0", np.ones(2, np.uint8)),
    }
    one = Path(shutil.copytree(first, tmp_path / "one"))
    other_weights(copy)
    write_weights(one, tensors)
    if changed_in == "norm":
        tensors["norm"][1][2] = 2
    elif changed_in == "expert":
        tensors["expert"][1][1, 2] = 0x4000
    elif changed_in == "scale":
        tensors["scale"][1][0] = 7
    write_weights(copy, tensors)
    code, text = told(one, copy)
    assert code == 1
    assert f"{hashlib.sha256(b'weightz').hexdigest()[:12]}{said}\n" in text


def test_how_far_apart_is_told(first: Path, copy: Path) -> None:
    rows = pq.read_table(file_of(copy, "rollouts", 1)).to_pylist()
    generated = [np.flatnonzero(row["loss_mask"]) for row in rows]
    total = sum(map(len, generated))
    last = int(generated[0][-1])

    def change(rows: list[dict]) -> None:
        rows[0]["rollout_logprobs"][int(generated[0][0])] -= 0.125
        rows[0]["tokens"][last] = 7
        rows[0]["rollout_logprobs"][last] -= 5.0  # of another token: not comparable
        rows[1]["rollout_logprobs"][int(generated[1][0])] -= 0.25

    rewrite(copy, "rollouts", 1, change)
    text = told(first, copy)[1]
    assert f"Of its {total:,} generated tokens {(total - 1) / total:.1%} come before" in text
    assert "at most 0.25 nats apart" in text
    assert (
        f"sample 000001-0-0 (task {rows[0]['task_id']}), turn 1, token {generated[0][0]} " in text
    )
    assert "2 of 6 samples differ" in text


def test_runs_that_cannot_be_identical_are_not_called_faulty(first: Path, copy: Path) -> None:
    config = load_run_config(copy)
    text = (copy / "config.yaml").read_text()
    assert config.parallel.device.name == "cpu"
    (copy / "config.yaml").write_text(text.replace("device: cpu", "device: cuda"))
    PARTS["log-prob"][0](copy)
    code, text = told(first, copy)
    assert code == 1
    assert "cannot be bit-identical (parallel.device=cuda" in text
    assert "fault" not in text


def test_other_identities_and_machines_are_named(first: Path, copy: Path) -> None:
    identity, _ = load_identity(copy)
    assert identity.made is not None
    made = replace(identity.made, machine={**identity.made.machine, "cpu": "Other CPU"})
    other = replace(identity, packages={**identity.packages, "numpy": "9"}, made=made)
    other = replace(other, hash=other.expected_hash())
    save_identity(other, copy, [])
    for path in copy.glob("*/step_*.parquet"):
        stamp(copy, path.parent.name, int(path.stem[5:]), "identity", other.hash)
    PARTS["log-prob"][0](copy)
    text = told(first, copy)[1]
    assert "package numpy: " in text and " -> 9" in text
    assert "cpu Other CPU" in text
    assert "Two identities need not give the same." in text


def test_a_run_that_is_not_as_far_is_compared_as_far_as_it_is(first: Path, copy: Path) -> None:
    (copy / "finished").unlink()
    for kind in ("rollouts", "train", "eval"):
        file_of(copy, kind, 3).unlink()
    code, text = told(first, copy)
    assert code == 0
    assert "Bit-identical as far as both go, which is step 2" in text


def test_a_damaged_file_is_no_comparison(first: Path, copy: Path) -> None:
    file_of(copy, "train", 2).write_bytes(b"PAR1")
    code, text = told(first, copy)
    assert code == 1
    assert "Not comparable: " in text and "train/step_000002.parquet is damaged" in text


def test_a_file_of_another_run_is_no_comparison(first: Path, copy: Path) -> None:
    stamp(copy, "rollouts", 2, "identity", "feed")
    code, text = told(first, copy)
    assert code == 1
    assert "rollouts/step_000002.parquet belongs to a run of identity feed" in text


def test_a_finished_run_that_lost_its_last_step_is_not_the_same(first: Path, copy: Path) -> None:
    for kind in ("rollouts", "train", "eval"):
        file_of(copy, kind, 3).unlink()
    code, text = told(first, copy)
    assert code == 1
    assert "rollouts/step_000003.parquet" in text


def test_what_cannot_be_compared_is_refused(first: Path, copy: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        told(tmp_path)
    with pytest.raises(UserError, match="one folder"):
        told(first, first)
    (copy / "finished").unlink()
    for kind in ("rollouts", "train", "eval"):
        shutil.rmtree(copy / kind)
    with pytest.raises(UserError, match="no step in common"):
        told(first, copy)
