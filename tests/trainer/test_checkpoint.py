import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from glm52_tbench2.config.schema import DType
from glm52_tbench2.launch.run_folder import last_checkpoint
from glm52_tbench2.trainer.checkpoint_files import (
    mark_stable,
    prune,
    steps_begun,
    steps_complete,
)

from .parts import layout, make_batch, on_disk, save_start_weights


def without_times(metrics):
    return [{k: v for k, v in m.items() if not k.startswith("time/")} for m in metrics]


@pytest.fixture(scope="module")
def batches(run):
    return [make_batch(run, step) for step in (1, 2, 3, 4)]


@pytest.fixture(scope="module")
def saved(ranks, run, batches, tmp_path_factory):
    """A run folder with checkpoints of steps 3 and 4, and what training gave."""
    run_dir = tmp_path_factory.mktemp("saved")
    (result,) = ranks(run, "save_and_go_on", run_dir, batches, [2, 3, 4])
    return run_dir, result


@pytest.fixture
def run_dir(saved, tmp_path):
    return shutil.copytree(saved[0], tmp_path / "run")


def folder(run_dir, step):
    return run_dir / "checkpoints" / f"step_{step:06d}"


def test_only_the_newest_are_kept_and_nothing_else_is_left(saved):
    kept = sorted(p.name for p in (saved[0] / "checkpoints").iterdir())
    assert kept == ["step_000003", "step_000004"]


def test_training_goes_on_from_a_checkpoint_bit_for_bit(ranks, run, batches, run_dir, saved):
    _, (metrics, weights) = saved
    shutil.rmtree(folder(run_dir, 4))
    (found,) = ranks(run, "save_and_go_on", run_dir, batches, [])
    assert without_times(found[0]) == without_times(metrics[3:])
    for name in weights:
        np.testing.assert_array_equal(found[1][name], weights[name], err_msg=name)


def test_a_checkpoint_of_one_rank_is_loaded_by_two(ranks, run, batches, run_dir, saved):
    _, (metrics, weights) = saved
    shutil.rmtree(folder(run_dir, 4))
    found = ranks(layout(run, 2), "save_and_go_on", run_dir, batches, [])[0]
    assert found[0][0]["trainer/loss"] == pytest.approx(metrics[3]["trainer/loss"], rel=1e-4)
    for name in weights:
        np.testing.assert_allclose(found[1][name], weights[name], atol=2e-5, err_msg=name)


@pytest.mark.parametrize(
    ("saved_by", "loaded_by"),
    [
        ({"tensor": 2, "expert_tensor": 2, "sequence_parallel": True}, {"pipeline": 2}),
        ({"expert": 2}, {}),
        ({}, {"expert": 2}),
    ],
    ids=["tensor to pipeline", "experts shared to whole", "experts whole to shared"],
)
def test_another_layout_goes_on_from_a_checkpoint(
    ranks, run, batches, tmp_path, saved, saved_by, loaded_by
):
    """One of them with its optimizer state on disk."""
    _, (metrics, weights) = saved
    first, second = layout(run, 2, **saved_by), layout(run, 2, **loaded_by)
    ranks(on_disk(first, tmp_path / "state"), "save_and_go_on", tmp_path, batches[:3], [3])
    second.parallel.pipeline_layers = [1, 2] if second.parallel.pipeline > 1 else []
    found = ranks(second, "save_and_go_on", tmp_path, batches, [])[0]
    assert found[0][0]["trainer/loss"] == pytest.approx(metrics[3]["trainer/loss"], rel=1e-4)
    for name in weights:
        np.testing.assert_allclose(found[1][name], weights[name], atol=5e-5, err_msg=name)


@pytest.mark.parametrize("state", ["in memory", "on disk"])
def test_training_goes_on_while_a_checkpoint_is_written(
    ranks, run, batches, tmp_path, saved, state
):
    """What is written is the step that was saved; on disk, the second update waits for it."""
    held_by = on_disk(run, tmp_path / "state") if state == "on disk" else run
    (found,) = ranks(held_by, "save_beside_training", tmp_path, batches[:3])
    assert found == ([True, state == "in memory"], [1])
    shutil.rmtree(folder(tmp_path, 3))
    (resumed,) = ranks(run, "save_and_go_on", tmp_path, batches, [])
    _, (metrics, weights) = saved
    assert without_times(resumed[0]) == without_times(metrics[1:])
    for name in weights:
        np.testing.assert_array_equal(resumed[1][name], weights[name], err_msg=name)


def test_a_disk_that_is_full_on_one_rank_is_one_sentence_on_all(ranks, run, batches, tmp_path):
    told = ranks(layout(run, 2), "save_on_a_full_disk", tmp_path, batches)
    assert told[0] == told[1]
    assert "is full, so the checkpoint of step 1 was not written; there is none yet" in told[0]
    assert not folder(tmp_path, 1).exists()


@pytest.mark.parametrize(
    ("knobs", "sentence"),
    [
        ({"num_layers": 4}, "it has 3 layers, and the config makes 4"),
        (
            {"dense_ffn_size": 96},
            "its decoder.layers.0.mlp.linear_fc1.weight has shape [128, 48], and the config makes "
            "it [192, 48]",
        ),
        ({"num_dense_layers": 2}, "it has decoder.layers.1.mlp.experts."),
        ({"dtype": DType.bfloat16}, "it has no optimizer.state.fp32_param."),
    ],
    ids=["layers", "shape", "part", "precision"],
)
def test_a_checkpoint_of_another_model_is_one_sentence(
    ranks, run, run_dir, tmp_path, knobs, sentence
):
    other = replace(run, model=replace(run.model, path=str(tmp_path / "start"), **knobs))
    save_start_weights(other, tmp_path / "start")
    (told,) = ranks(other, "refused", run_dir)
    assert sentence in told
    assert f"{folder(run_dir, 4)} is a checkpoint of another model" in told


def complete_steps(run_dir, keep_last, keep_every, last=12):
    for step in range(2, last + 1, 2):
        folder(run_dir, step).mkdir(parents=True)
        mark_stable(folder(run_dir, step), step, {})
        prune(run_dir, step, keep_last, keep_every)
    return steps_complete(run_dir)


def test_every_nth_checkpoint_is_kept_for_good(tmp_path):
    assert complete_steps(tmp_path / "some", 2, 4) == [4, 8, 10, 12]
    assert complete_steps(tmp_path / "none", 1, None) == [12]


def test_a_copy_that_somebody_keeps_beside_them_is_no_checkpoint(tmp_path):
    kept = folder(tmp_path, 2).with_name("step_000002_best")
    kept.mkdir(parents=True)
    mark_stable(kept, 2, {})
    assert complete_steps(tmp_path, 1, None) == [12]
    assert last_checkpoint(tmp_path) == 12
    assert kept.exists()


def test_pruning_spares_the_only_complete_checkpoint(tmp_path):
    assert complete_steps(tmp_path, 1, None, last=2) == [2]
    folder(tmp_path, 4).mkdir()
    prune(tmp_path, 2, 1, None)
    assert steps_begun(tmp_path) == [2]


def test_a_damaged_later_checkpoint_never_costs_the_one_just_written(tmp_path):
    """The run has come back to step 2, past a step 8 that is whole by name only."""
    for step in (2, 8, 4):
        folder(tmp_path, step).mkdir(parents=True)
        mark_stable(folder(tmp_path, step), step, {})
    prune(tmp_path, 4, 1, None)
    assert steps_begun(tmp_path) == [4]


def flip_a_bit(checkpoint):
    path = next(checkpoint.glob("*.distcp"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut_a_file(checkpoint):
    path = next(checkpoint.glob("*.distcp"))
    path.write_bytes(path.read_bytes()[:-100])


def lose_a_file(checkpoint):
    (checkpoint / "common.pt").unlink()


def never_finish(checkpoint):
    (checkpoint / "STABLE").unlink()


def garble_the_marker(checkpoint):
    (checkpoint / "STABLE").write_text("{")


def empty_the_marker(checkpoint):
    (checkpoint / "STABLE").write_text(json.dumps({"step": 4}))


@pytest.mark.parametrize(
    "damage",
    [flip_a_bit, cut_a_file, lose_a_file, never_finish, garble_the_marker, empty_the_marker],
    ids=lambda f: f.__name__,
)
def test_a_damaged_or_unfinished_checkpoint_is_passed_over(ranks, run, run_dir, damage):
    damage(folder(run_dir, 4))
    assert ranks(run, "newest_intact", run_dir) == [3]


def test_no_checkpoint_at_all_is_a_start_from_the_beginning(ranks, run, tmp_path):
    assert ranks(run, "newest_intact", tmp_path) == [None]


def test_an_unfinished_checkpoint_is_written_over(ranks, run, batches, run_dir):
    never_finish(folder(run_dir, 4))
    ranks(run, "save_and_go_on", run_dir, batches, [4])
    assert ranks(run, "newest_intact", run_dir) == [4]


def test_a_full_disk_is_known_by_the_text_alone_wherever_it_cuts_a_file_short(ranks, run):
    rooms = [0, 100, 600, 1000, 1300]
    assert ranks(run, "known_full_disks", rooms) == [[True] * len(rooms)]
