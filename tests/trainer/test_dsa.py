"""Sparse attention: GLM-5.2's indexer, layers that share a choice of keys, and every layout."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.schema import DType, Recompute, RunConfig
from glm52_tbench2.trainer.hf import check_hf_config

from .parts import layout, make_batch
from .test_convert import SEQUENCES, transformers_logits
from .test_step import LAYOUTS, assert_same_training, train_by_transformers


def top_k(run: RunConfig, number: int) -> RunConfig:
    return replace(run, model=replace(run.model, index_topk=number))


@pytest.fixture(scope="module")
def batch(sparse):
    return make_batch(sparse, 1)


@pytest.fixture(scope="module")
def trained(ranks, sparse, batch):
    return ranks(sparse, "train", [batch])[0]


def written(run: RunConfig) -> dict:
    return load_file(Path(run.model.path) / "model.safetensors")


@pytest.mark.parametrize("number", [8, 100], ids=["fewer-than-keys", "more-than-keys"])
def test_packed_logits_are_those_of_transformers(ranks, sparse, number):
    (found,) = ranks(top_k(sparse, number), "logits", SEQUENCES)
    expected = transformers_logits(Path(sparse.model.path), index_topk=number)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_step_is_that_of_plain_transformers_and_leaves_the_indexers_alone(sparse, batch, trained):
    (metrics,), _, weights = trained
    (expected,), model = train_by_transformers(sparse, [batch])
    assert metrics["trainer/loss"] == pytest.approx(expected["trainer/loss"], abs=1e-5)
    for name in ("trainer/grad_norm", "trainer/update_norm"):
        assert metrics[name] == pytest.approx(expected[name], rel=1e-4), name
    final, before = model.state_dict(), written(sparse)
    for layer in (0, 1, 2):
        for name in ("q_b_proj", "kv_a_proj_with_mqa", "o_proj"):
            full = f"model.layers.{layer}.self_attn.{name}.weight"
            np.testing.assert_allclose(weights[full], final[full].numpy(), atol=2e-5, err_msg=full)
    indexers = [name for name in before if ".indexer." in name]
    assert len(indexers) == 2 * 5
    for name in indexers:
        np.testing.assert_array_equal(weights[name], before[name].numpy(), err_msg=name)


@pytest.mark.parametrize("recompute", list(Recompute))
def test_choices_go_with_their_micro_batch(ranks, sparse, batch, recompute):
    parallel = replace(sparse.parallel, max_tokens_per_rank=1, recompute=recompute)
    (alive,) = ranks(replace(sparse, parallel=parallel), "choices_alive", batch)
    assert len(alive) >= 2 * len(batch)
    assert max(alive) <= 4  # of two indexers, once more where they are recomputed


def test_places_that_only_fill_a_choice_up_may_lie_anywhere(ranks, sparse):
    ((found, seen),) = ranks(sparse, "sparse_mask")
    seen[3, 0] = False
    np.testing.assert_array_equal(found, seen)


@pytest.mark.parametrize(
    "name",
    [
        "tensor-expert",
        "pipeline",
        "context",
        "context-4",
        "tensor-pipeline",
        "tensor-context-expert",
        "context-pipeline",
    ],
)
def test_every_layout_trains_as_one_rank(ranks, sparse, batch, trained, name):
    number, parallel = LAYOUTS[name]
    found = ranks(layout(sparse, number, max_tokens_per_rank=100, **parallel), "train", [batch])
    assert_same_training(found[0], trained)


@pytest.mark.parametrize("name", ["single", "context-pipeline"])
def test_recomputation_uses_the_choice_of_its_own_micro_batch(ranks, sparse, batch, trained, name):
    number, parallel = LAYOUTS.get(name, (1, {}))
    run = layout(sparse, number, recompute=Recompute.full, max_tokens_per_rank=60, **parallel)
    assert_same_training(ranks(run, "train", [batch])[0], trained)


def test_scores_without_a_gradient_are_those_with_one(ranks, sparse, batch, trained):
    twice = replace(sparse, optim=replace(sparse.optim, steps_per_batch=2))
    (found,) = ranks(twice, "train", [batch])
    for mine, expected in zip(found[1][0], trained[1][0], strict=True):
        np.testing.assert_allclose(mine, expected, atol=2e-5)


def test_no_optimizer_holds_an_indexer(ranks, sparse):
    (found,) = ranks(sparse, "decays")
    assert found
    assert not [name for name in found if "indexer" in name]


@pytest.mark.parametrize("name", ["single", "tensor-expert", "pipeline", "context"])
def test_a_round_trip_changes_no_name_and_no_bit(ranks, sparse, name):
    number, parallel = LAYOUTS.get(name, (1, {}))
    found = ranks(layout(sparse, number, **parallel), "round_trip")[0]
    before = written(sparse)
    assert found.keys() == before.keys()
    for name, tensor in before.items():
        np.testing.assert_array_equal(found[name], tensor.numpy(), err_msg=name)


def test_a_checkpoint_has_the_indexers_too(ranks, sparse, batch, trained, tmp_path):
    ranks(sparse, "save_and_go_on", tmp_path, [batch], [1])
    # Whatever the model starts from, the checkpoint counts.
    other = shutil.copytree(sparse.model.path, tmp_path / "other")
    (found,) = ranks(
        replace(sparse, model=replace(sparse.model, path=str(other))),
        "save_and_go_on",
        tmp_path,
        [batch],
        [],
    )
    for name, expected in trained[2].items():
        np.testing.assert_array_equal(found[1][name], expected, err_msg=name)


def test_bfloat16_trains_close_to_float32(ranks, sparse, batch, trained):
    half = replace(sparse, model=replace(sparse.model, dtype=DType.bfloat16))
    (found,) = ranks(half, "train", [batch])
    expected = trained[0][0]["trainer/loss"]
    assert found[0][0]["trainer/loss"] == pytest.approx(expected, abs=0.1)


def test_a_folder_with_other_indexers_is_refused(sparse):
    folder = Path(sparse.model.path)
    check_hf_config(sparse.model, folder)
    with pytest.raises(UserError, match=r"indexer_types = \['full', 'shared', 'full'\]"):
        check_hf_config(replace(sparse.model, index_layers=[1, 2, 3]), folder)
    with pytest.raises(UserError, match="index_topk = 8"):
        check_hf_config(top_k(sparse, 16).model, folder)


@pytest.mark.parametrize(("every", "fits"), [(2, True), (1, False)])
def test_indexers_that_a_folder_tells_by_a_rule_are_compared_too(sparse, tmp_path, every, fits):
    written = json.loads((Path(sparse.model.path) / "config.json").read_text())
    del written["indexer_types"]
    written |= {"index_topk_freq": every, "index_skip_topk_offset": 1}
    (tmp_path / "config.json").write_text(json.dumps(written))
    if fits:
        check_hf_config(sparse.model, tmp_path)
        return
    with pytest.raises(UserError, match=r"indexer_types = \['full', 'full', 'full'\]"):
        check_hf_config(sparse.model, tmp_path)
