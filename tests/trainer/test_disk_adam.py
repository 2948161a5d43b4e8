"""Optimizer state on disk: the same training to the bit as with the state in memory."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.schema import DType, RunConfig
from glm52_tbench2.trainer.disk_adam.state_file import StateFile
from glm52_tbench2.trainer.disk_adam.stream import Stream, make_buffers

from .parts import assert_same_metrics, layout, make_batch, on_disk


def hard(run: RunConfig) -> RunConfig:
    """Clips and decays, and needs more than one update a batch."""
    return replace(run, optim=replace(run.optim, clip_grad=0.05, eps=1e-8, steps_per_batch=2))


@pytest.fixture(scope="module")
def batches(run):
    return [make_batch(run, step) for step in (1, 2, 3)]


@pytest.mark.parametrize(
    ("dtype", "parallel"),
    [
        (DType.float32, {}),
        (DType.bfloat16, {}),
        (DType.bfloat16, {"expert": 2}),
        (DType.float32, {"tensor": 2, "expert_tensor": 2, "sequence_parallel": True}),
    ],
    ids=["float32", "bfloat16", "expert parallel", "tensor parallel"],
)
def test_training_is_the_same_to_the_bit(ranks, run, batches, tmp_path, dtype, parallel):
    run = hard(replace(run, model=replace(run.model, dtype=dtype)))
    run = layout(run, 2 if parallel else 1, **parallel)
    metrics, _, weights = ranks(run, "train", batches)[0]
    found = ranks(on_disk(run, tmp_path), "train", batches)[0]
    assert_same_metrics(found[0], metrics)
    assert list(tmp_path.iterdir()) == []
    for name in weights:
        np.testing.assert_array_equal(found[2][name], weights[name], err_msg=name)


@pytest.mark.parametrize("saved_on_disk", [True, False], ids=["to memory", "to disk"])
def test_a_checkpoint_moves_the_state(ranks, run, batches, tmp_path, saved_on_disk):
    """From disk to memory and the reverse, as if it had always been there."""
    run = hard(replace(run, model=replace(run.model, dtype=DType.bfloat16)))
    (expected,) = ranks(run, "save_and_go_on", tmp_path / "never", batches, [])
    there = on_disk(run, tmp_path / "state")
    first, second = (there, run) if saved_on_disk else (run, there)
    ranks(first, "save_and_go_on", tmp_path, batches[:2], [2])
    (found,) = ranks(second, "save_and_go_on", tmp_path, batches, [])
    assert_same_metrics(found[0], expected[0][2:])
    for name in expected[1]:
        np.testing.assert_array_equal(found[1][name], expected[1][name], err_msg=name)


def test_a_folder_that_cannot_take_the_state_is_one_sentence(ranks, run, tmp_path):
    (tmp_path / "file").write_text("")
    (told,) = ranks(on_disk(run, tmp_path / "file" / "state"), "refused")
    assert told.startswith(f"optim.state_dir is {tmp_path / 'file' / 'state'}, where")
    assert "Not a directory; write optim.state_dir=FOLDER" in told


def test_a_disk_without_room_for_the_state_is_one_sentence_and_stays_as_it_is(tmp_path):
    with pytest.raises(UserError, match=r"2097152\.000 GiB: No space left on device, .* are free"):
        StateFile(tmp_path, 2, 2**47)
    assert list(tmp_path.iterdir()) == []


def test_a_page_of_each_vector_is_the_smallest_bucket(tmp_path):
    file = StateFile(tmp_path, 3, 5000)
    starts = []

    def update(start, bucket):
        starts.append((start, bucket.shape))
        bucket += torch.arange(bucket.size(1)) + start

    Stream(file, make_buffers(3, 1, 5000, pinned=False)).run(0, update)
    assert starts == [(start, (3, 1024)) for start in range(0, 5120, 1024)]
    torch.testing.assert_close(file.mapped(1), torch.arange(5120.0).expand(3, -1))
    assert not file.mapped(0).any()
