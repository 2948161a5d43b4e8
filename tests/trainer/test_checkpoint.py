import json
import shutil

import numpy as np
import pytest

from .parts import layout, make_batch


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
