"""An update taken apart: its parts against the update, and against training without the others."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from glm52_tbench2.analysis.influence import SCHEMA, influences
from glm52_tbench2.analysis.run_files import RunFiles
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.files import SCHEMA_VERSION
from glm52_tbench2.config.schema import DType, RunConfig
from glm52_tbench2.rollout.batch import Sample, batch_path, read_batch, write_batch
from glm52_tbench2.trainer.influence.main import influence

from .parts import IDENTITY, Ranks, make_batch, make_run_dir

TASKS = ("files-1", "text-1")


def batch_of_tasks(run: RunConfig, step: int, seed: int = 0) -> list[Sample]:
    """Two groups, a task each."""
    batch = make_batch(run, step, seed=seed)
    return [replace(sample, task_id=TASKS[sample.group]) for sample in batch]


@pytest.fixture(scope="module")
def near_cap(run: RunConfig) -> RunConfig:
    """Some turns are near the cap; weights decay; gradients are clipped."""
    optim = replace(run.optim, weight_decay=0.1, clip_grad=0.1)
    return replace(run, optim=optim, rollout=replace(run.rollout, max_turn_tokens=28))


@pytest.fixture(scope="module")
def recorded(near_cap, ranks, tmp_path_factory) -> Path:
    return record(near_cap, ranks, tmp_path_factory.mktemp("influence") / "run")


def record(run: RunConfig, ranks: Ranks, run_dir: Path) -> Path:
    """A run of four steps with checkpoints at 2 and 4, step 2 of the content of step 1."""
    make_run_dir(run, run_dir, 0)
    for step in range(1, 5):
        batch = batch_of_tasks(run, step, seed=1)
        if step == 2:
            first = batch_of_tasks(run, 1, seed=1)
            batch = [
                replace(old, sample_id=new.sample_id, step=2)
                for old, new in zip(first, batch, strict=True)
            ]
        write_batch(batch_path(run_dir, "rollouts", step), batch, IDENTITY, step)
    kept = replace(run, checkpoint=replace(run.checkpoint, keep_last=2))
    ranks(kept, "record_run", run_dir, 4, [2, 4])
    return run_dir


def test_the_parts_add_up_to_the_update(near_cap, ranks):
    batches = [batch_of_tasks(near_cap, step) for step in (1, 2, 3)]
    parts, whole = ranks(near_cap, "taken_apart", batches, [5])[0]
    groups = {part for part in parts if part.part == "samples"}
    # One sample is left out; all others are of one group each.
    assert sum(part.samples for part in groups) == len(batches[-1]) - 1
    assert {part.task for part in groups} == set(TASKS)
    assert {part.sign for part in groups} == {-1, 1}
    assert {part.near_cap for part in groups} == {True, False}
    assert {part.part for part in parts} == {"samples", "momentum", "decay"}
    assert all(np.linalg.norm(change) > 1e-3 * np.linalg.norm(whole) for change in parts.values())
    # Weights of 1 round at 6e-8; the largest change is of 1e-2.
    np.testing.assert_allclose(sum(parts.values()), whole, atol=2e-6)


def test_a_group_s_part_is_what_its_samples_alone_would_train(run, ranks):
    # With an eps beyond every gradient, what others did to the second moment does not matter.
    optim = replace(run.optim, eps=1e3, lr=1e3, clip_grad=0.0, weight_decay=0.0)
    plain = replace(run, optim=optim)
    batch = batch_of_tasks(run, 1)
    parts, _ = ranks(plain, "taken_apart", [batch], [])[0]
    part = next(one for one in parts if one.task == "files-1" and one.sign == -1)
    others = [
        place
        for place, sample in enumerate(batch)
        if sample.task_id != "files-1" or sample.advantage > 0
    ]
    _, alone = ranks(plain, "taken_apart", [batch], others)[0]
    size = np.abs(alone).max()
    np.testing.assert_allclose(parts[part], alone, atol=1e-3 * size)


def test_the_update_s_row_is_the_change_that_the_run_recorded(near_cap, recorded, ranks):
    rows = ranks(near_cap, "influence_of", recorded, 1)[0]
    whole = {
        (row["content_sample"], row["content_turn"]): row["change"]
        for row in rows
        if row["part"] == "update"
    }
    before, after = (
        pq.read_table(batch_path(recorded, "train", step))["trainer_logprobs"].to_pylist()
        for step in (1, 2)
    )
    seen = 0
    for place, sample in enumerate(read_batch(batch_path(recorded, "rollouts", 2))):
        moved = np.array(after[place]) - np.array(before[place])
        for number, turn in enumerate(sample.turns):
            change = whole[sample.sample_id, number]
            assert change == pytest.approx(moved[turn.start : turn.end].mean(), abs=1e-6)
            seen += abs(change) > 1e-4
    assert seen == len(whole)  # each moved, so that a 0 everywhere would not pass


def test_from_a_checkpoint_or_from_the_start_the_rows_are_the_same(
    near_cap, recorded, ranks, tmp_path
):
    without = tmp_path / "run"
    shutil.copytree(recorded, without, ignore=shutil.ignore_patterns("checkpoints"))
    found, again = (ranks(near_cap, "influence_of", path, 3)[0] for path in (recorded, without))
    assert [row.keys() for row in found] == [row.keys() for row in again]
    changes = [[row["change"] for row in rows] for rows in (found, again)]
    np.testing.assert_allclose(*changes, atol=1e-7)


def test_the_command_tells_what_each_part_did_and_forensics_finds_it(recorded):
    told = glm52("influence", recorded, "--step", "3")
    for line in ("the whole", "files-1 A < 0", "earlier steps", "weight decay"):
        assert line in told
    found = influences(RunFiles.open(recorded), 3)
    assert found is not None
    assert found.parts[0].part == "update"
    assert {one.part for one in found.parts} == {"update", "samples", "momentum", "decay"}
    assert "the update of step 3" in glm52("forensics", recorded, codes=(1,))


def test_shares_add_up_to_what_a_small_update_did(near_cap, ranks, tmp_path):
    small = replace(near_cap, optim=replace(near_cap.optim, lr=1e-4))
    rows = ranks(small, "influence_of", record(small, ranks, tmp_path / "run"), 3)[0]
    turns = {(row["content_sample"], row["content_turn"]) for row in rows}
    added, whole = (
        {
            turn: sum(
                row["change"]
                for row in rows
                if (row["content_sample"], row["content_turn"]) == turn
                and (row["part"] == "update") is update
            )
            for turn in turns
        }
        for update in (False, True)
    )
    missed = sum(abs(added[turn] - whole[turn]) for turn in turns)
    assert missed < 0.05 * sum(map(abs, whole.values()))


@pytest.mark.parametrize("how", ["another schema", "another step", "damaged", "no whole"])
def test_a_file_that_cannot_be_trusted_is_left_out_and_named(recorded, ranks, tmp_path, how):
    run_dir = tmp_path / "run"
    shutil.copytree(recorded, run_dir, ignore=shutil.ignore_patterns("checkpoints"))
    path = batch_path(run_dir, "influence", 3)
    path.parent.mkdir(exist_ok=True)
    whole = dict.fromkeys(SCHEMA.names) | {"part": "update" if how != "no whole" else "decay"}
    about = {"schema_version": SCHEMA_VERSION, "identity": IDENTITY, "step": "3"}
    if how == "another step":
        about["step"] = "2"
    table = pa.Table.from_pylist([whole], SCHEMA).replace_schema_metadata(about)
    pq.write_table(table.drop(["change"]) if how == "another schema" else table, path)
    if how == "damaged":
        path.write_bytes(path.read_bytes()[:-20])
    run = RunFiles.open(run_dir)
    assert influences(run, 3) is None
    assert "influence/step_000003.parquet" in " ".join(run.warnings)


def test_scores_of_other_weights_are_refused(near_cap, recorded, ranks, tmp_path):
    other = tmp_path / "run"
    shutil.copytree(recorded, other, ignore=shutil.ignore_patterns("checkpoints"))
    path = batch_path(other, "train", 1)
    table = pq.read_table(path)
    moved = pa.array([np.add(one, 0.01) for one in table["trainer_logprobs"].to_pylist()])
    pq.write_table(table.set_column(1, "trainer_logprobs", moved), path)
    with pytest.raises(AssertionError, match=r"UserError: The log-probs of step 1, .* 0\.01 nats"):
        ranks(near_cap, "influence_of", other, 1)


def test_a_damaged_train_file_is_one_sentence(near_cap, recorded, ranks, tmp_path):
    for number, rows in enumerate((None, 3, 0)):
        other = tmp_path / str(number)
        shutil.copytree(recorded, other)
        path = batch_path(other, "train", 4)
        table = pq.read_table(path)
        if rows is None:
            path.write_bytes(path.read_bytes()[:-20])
        elif rows:
            pq.write_table(table.slice(0, rows), path)
        else:
            lost = pa.array([np.full(len(one), np.nan) for one in table["trainer_logprobs"]])
            pq.write_table(table.set_column(1, "trainer_logprobs", lost), path)
        with pytest.raises(AssertionError, match=r"UserError: .* influence can't be told"):
            ranks(near_cap, "influence_of", other, 3)


def test_content_without_a_turn_is_not_moved(near_cap, recorded, ranks, tmp_path):
    other = tmp_path / "run"
    shutil.copytree(recorded, other)
    path = batch_path(other, "rollouts", 4)
    batch = read_batch(path)
    silent = batch[5]
    mask = np.zeros_like(silent.loss_mask)
    batch[5] = replace(
        silent, turns=[], loss_mask=mask, prompt_tokens=len(mask), rollout_logprobs=mask * 0.0,
        weight_versions=mask - 1,
    )  # fmt: skip
    write_batch(path, batch, IDENTITY, 4)
    rows = ranks(near_cap, "influence_of", other, 3)[0]
    assert silent.sample_id not in {row["content_sample"] for row in rows}
    assert len({row["content_sample"] for row in rows}) == len(batch) - 1


@pytest.mark.parametrize(
    ("step", "change", "told"),
    [
        (4, {}, "influence can be told of steps 1 to 3"),
        (0, {}, "lacks step 0 or the one after"),
        (1, {"dtype": DType.bfloat16}, "trains in bfloat16"),
        (1, {"steps_per_batch": 2}, "optim.steps_per_batch=2"),
    ],
)
def test_what_cannot_be_taken_apart_is_refused_before_any_work(
    near_cap, recorded, tmp_path, step, change, told
):
    model = replace(near_cap.model, **{k: v for k, v in change.items() if k == "dtype"})
    optim = replace(near_cap.optim, **{k: v for k, v in change.items() if k != "dtype"})
    run_dir = make_run_dir(replace(near_cap, model=model, optim=optim), tmp_path / "run", 0)
    for kind in ("rollouts", "train"):
        shutil.copytree(recorded / kind, run_dir / kind, dirs_exist_ok=True)
    with pytest.raises(UserError, match=told):
        influence(run_dir, step)


def glm52(*words: str | Path, codes: Sequence[int] = (0,)) -> str:
    """What the command prints."""
    program = "import sys; from glm52_tbench2.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, words)], capture_output=True, text=True
    )
    assert done.returncode in codes, done.stderr
    return done.stdout
