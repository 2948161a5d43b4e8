"""Weights in fp8 blocks, as they leave the trainer."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from glm52_tbench2.engines import weights
from glm52_tbench2.engines.weights import fp8
from glm52_tbench2.engines.weights.sender import buckets


def restored(weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """What an engine computes with, and the scale of every number."""
    rows, columns = weight.shape
    scale = scales.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
    return weight.double() * scale.double(), scale.double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(128, 128), (512, 256), (6144, 3072)])
def test_multiples_of_a_block_are_as_transformers_makes_them(dtype, shape) -> None:
    from transformers.integrations.finegrained_fp8 import Fp8Quantize

    torch.manual_seed(0)
    weight = (torch.randn(shape) * torch.rand(shape[0], 1).exp2()).to(dtype)
    weight[:128, :128] = 0
    before = weight.clone()
    config = SimpleNamespace(weight_block_size=(128, 128), scale_fmt=None)
    quantiser = Fp8Quantize(SimpleNamespace(quantization_config=config))
    expected = quantiser.convert({"a.weight": weight})
    found, scales = fp8.quantise(weight)
    assert torch.equal(found.view(torch.uint8), expected["a.weight"].view(torch.uint8))
    assert torch.equal(scales, expected["a.weight_scale_inv"])
    assert scales.dtype == torch.float32
    assert torch.equal(weight, before)


@settings(deadline=None, max_examples=30)
@given(
    rows=st.integers(1, 300),
    columns=st.integers(1, 300),
    exponent=st.sampled_from([-130, -60, -3, 0, 60]),
    seed=st.integers(0, 99),
)
def test_every_number_is_within_half_a_step_of_its_block(rows, columns, exponent, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator) * 2.0**exponent
    found, scales = fp8.quantise(weight)
    assert scales.shape == (-(-rows // 128), -(-columns // 128))
    got, scale = restored(found, scales)
    # e4m3 has three bits behind the point, and steps of 2**-9 below its smallest normal number.
    half_step = torch.maximum(weight.double().abs() * 2.0**-4, scale * 2.0**-10)
    assert ((got - weight.double()).abs() <= half_step * (1 + 1e-6)).all()
    for top in range(0, rows, 128):
        for left in range(0, columns, 128):
            block = slice(top, top + 128), slice(left, left + 128)
            largest = weight[block].abs().max()
            if largest > 1e-35:
                torch.testing.assert_close(scale[block].max().float(), largest / 448)
                assert found[block].float().abs().max() == 448


def test_which_tensors_are_quantised() -> None:
    layer = "model.layers.3."
    for name in (
        "self_attn.q_a_proj",
        "self_attn.q_b_proj",
        "self_attn.kv_a_proj_with_mqa",
        "self_attn.kv_b_proj",
        "self_attn.o_proj",
        "self_attn.indexer.wq_b",
        "self_attn.indexer.wk",
        "mlp.gate_proj",
        "mlp.experts.255.up_proj",
        "mlp.shared_experts.down_proj",
    ):
        assert fp8.is_quantised(f"{layer}{name}.weight"), name
    for name in (
        "input_layernorm.weight",
        "self_attn.q_a_layernorm.weight",
        "self_attn.indexer.k_norm.weight",
        "self_attn.indexer.weights_proj.weight",
        "mlp.gate.weight",
        "mlp.gate.e_score_correction_bias",
        "eh_proj.weight",
        "shared_head.head.weight",
    ):
        assert not fp8.is_quantised(f"{layer}{name}"), name
    assert not fp8.is_quantised("lm_head.weight")
    assert not fp8.is_quantised("model.embed_tokens.weight")


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """Starting weights of one layer."""
    torch.manual_seed(1)
    folder = tmp_path / "start"
    folder.mkdir()
    shapes = {
        "lm_head.weight": (256, 128),
        "model.layers.0.mlp.down_proj.weight": (128, 200),
        "model.layers.0.mlp.gate.weight": (4, 128),
        "model.layers.0.self_attn.kv_a_proj_with_mqa.weight": (72, 128),
        "model.layers.0.self_attn.o_proj.weight": (128, 256),
        "model.norm.weight": (128,),
    }
    tensors = {name: torch.randn(shape).bfloat16() for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "glm4_moe_lite"}')
    return folder


def test_a_published_folder_says_how_it_is_to_be_read(tmp_path: Path, start: Path) -> None:
    tensors = load_file(start / "model.safetensors")
    folder = weights.publish(tmp_path / "weights", tensors.items(), start, 1, "fp8")
    assert fp8.holds_fp8(folder)
    assert not fp8.holds_fp8(start)
    config = json.loads((folder / "config.json").read_bytes())
    assert config["model_type"] == "glm4_moe_lite"
    kept = config["quantization_config"]["modules_to_not_convert"]
    assert kept == ["lm_head", "model.layers.0.mlp.gate"]
    found = load_file(folder / "model-00001.safetensors")
    for name, tensor in tensors.items():
        if fp8.is_quantised(name):
            got, _ = restored(found.pop(name), found.pop(f"{name}_scale_inv"))
            torch.testing.assert_close(got.float(), tensor.float(), atol=0.02, rtol=2.0**-4)
        else:
            assert torch.equal(found.pop(name), tensor)
    assert not found


def test_rounded_weights_have_the_values_of_fp8_and_their_own_names(
    tmp_path: Path, start: Path
) -> None:
    tensors = load_file(start / "model.safetensors")
    folder = weights.publish(tmp_path / "weights", tensors.items(), start, 0, "fp8_rounded")
    assert not fp8.holds_fp8(folder), "the engine computes in float32"
    found = load_file(folder / "model-00001.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        expected = tensor
        if fp8.is_quantised(name):
            expected = restored(*fp8.quantise(tensor))[0].to(tensor.dtype)
            assert not torch.equal(found[name], tensor)
        assert torch.equal(found[name], expected)


def test_a_weight_and_its_scales_travel_in_one_bucket_of_half_the_bytes(start: Path) -> None:
    tensors = load_file(start / "model.safetensors")
    names = [name for name in tensors if fp8.is_quantised(name)]
    half = sum(tensors[name].nbytes for name in names) // 2
    sent = list(buckets(fp8.quantised((name, tensors[name]) for name in names), 2**20))
    assert [name for name, _ in sent[0]] == [
        n for name in names for n in (name, fp8.scales_of(name))
    ]
    assert sum(tensor.nbytes for _, tensor in sent[0]) < half * 1.01
