from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.paths import resolve
from glm52_tbench2.config.schema import DType
from glm52_tbench2.trainer.hf import check_hf_config

from .parts import layout

SEQUENCES = [[int(t) for t in np.random.default_rng(n).integers(0, 256, n)] for n in (1, 17, 60)]


def transformers_logits(folder: Path, **config) -> np.ndarray:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **config).eval()
    with torch.no_grad():
        return torch.cat([model(torch.tensor([s])).logits[0] for s in SEQUENCES]).numpy()


def test_packed_logits_are_those_of_transformers(ranks, run, start_weights):
    (found,) = ranks(run, "logits", SEQUENCES)
    np.testing.assert_allclose(found, transformers_logits(start_weights), atol=1e-4)


def test_the_shipped_model_has_the_logits_of_transformers(ranks):
    run = compose(["experiment=smoke"])
    run.model.path = str(resolve(run.model.path))
    (found,) = ranks(run, "logits", SEQUENCES)
    np.testing.assert_allclose(found, transformers_logits(Path(run.model.path)), atol=1e-4)


def test_a_round_trip_changes_no_name_and_no_bit(ranks, run, start_weights):
    (found,) = ranks(run, "round_trip")
    written = load_file(start_weights / "model.safetensors")
    assert found.keys() == written.keys()
    for name, tensor in written.items():
        np.testing.assert_array_equal(found[name], tensor.numpy(), err_msg=name)


@pytest.mark.parametrize(
    "parallel",
    [
        {"tensor": 2, "sequence_parallel": True, "expert_tensor": 2},
        {"tensor": 2, "sequence_parallel": True, "expert": 2},
        {"pipeline": 2, "pipeline_layers": [1, 2]},
        {"expert": 2},
    ],
    ids=["tensor", "tensor-expert", "pipeline", "expert"],
)
def test_a_round_trip_through_two_ranks_changes_no_bit(ranks, run, start_weights, parallel):
    found = ranks(layout(run, 2, **parallel), "round_trip")
    written = load_file(start_weights / "model.safetensors")
    assert found[0].keys() == written.keys()
    assert not found[1]
    for name, tensor in written.items():
        np.testing.assert_array_equal(found[0][name], tensor.numpy(), err_msg=name)


@pytest.mark.parametrize("stages", [1, 2])
def test_routing_biases_stay_as_precise_as_they_are_under_bfloat16(
    ranks, run, start_weights, stages
):
    """Of a start, before any step: that is what the first push sends."""
    half = replace(run, model=replace(run.model, dtype=DType.bfloat16))
    parallel = {"pipeline": 2, "pipeline_layers": [1, 2]} if stages == 2 else {}
    found = ranks(layout(half, stages, **parallel), "start_of_training")[0]
    written = load_file(start_weights / "model.safetensors")
    biases = [name for name in written if name.endswith("e_score_correction_bias")]
    assert len(biases) == 2
    for name in biases:
        np.testing.assert_array_equal(found[name], written[name].numpy(), err_msg=name)


def test_a_layer_the_model_lacks_is_handed_on_as_it_is(ranks, run, start_weights, tmp_path):
    tensors = load_file(start_weights / "model.safetensors")
    tensors["model.layers.3.eh_proj.weight"] = torch.randn(48, 96)
    save_file(tensors, tmp_path / "model.safetensors")
    with_it = replace(run, model=replace(run.model, path=str(tmp_path)))
    (found,) = ranks(with_it, "round_trip")
    assert found.keys() == tensors.keys()
    np.testing.assert_array_equal(
        found["model.layers.3.eh_proj.weight"], tensors["model.layers.3.eh_proj.weight"]
    )


def test_a_missing_tensor_is_named(ranks, run, start_weights, tmp_path):
    tensors = load_file(start_weights / "model.safetensors")
    del tensors["model.layers.1.mlp.experts.3.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    broken = replace(run, model=replace(run.model, path=str(tmp_path)))
    with pytest.raises(AssertionError, match=r"UserError.*lacks.*layers\.1\.mlp\.experts\.3\.up"):
        ranks(broken, "round_trip")


def test_a_tensor_of_another_shape_is_named(ranks, run):
    wider = replace(run, model=replace(run.model, expert_ffn_size=40))
    with pytest.raises(AssertionError, match=r"UserError.*has shape \[32, 48\].*\[40, 48\]"):
        ranks(wider, "round_trip")


def test_weights_in_fp8_are_refused(ranks, run, start_weights, tmp_path):
    tensors = load_file(start_weights / "model.safetensors")
    tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.float8_e4m3fn)
    save_file(tensors, tmp_path / "model.safetensors")
    quantised = replace(run, model=replace(run.model, path=str(tmp_path)))
    with pytest.raises(AssertionError, match=r"UserError.*lm_head\.weight is F8_E4M3; name"):
        ranks(quantised, "round_trip")


def test_a_folder_of_another_model_is_refused(run, start_weights):
    check_hf_config(run.model, start_weights)
    with pytest.raises(UserError, match=r"routed_scaling_factor = 1\.8"):
        check_hf_config(replace(run.model, router_scaling=2.5), start_weights)
    with pytest.raises(UserError, match="rope_parameters"):
        check_hf_config(replace(run.model, rope_base=1e6), start_weights)
    with pytest.raises(UserError, match=r"has no config\.json"):
        check_hf_config(run.model, start_weights / "nowhere")
