"""What the trainer chooses where it has GPUs, as far as a machine without one can tell."""

import subprocess
import sys

import numpy as np
import pytest

from benchmarks.gpu_check import differences
from glm52_tbench2.config.schema import Device

from .parts import layout


def test_matrix_products_are_transformer_engines_and_attention_is_ours(ranks, run, sparse):
    common = {
        "core_attention": "PackedAttention",
        "q_down": "Linear",
        "q_up": "TEColumnParallelLinear",
        "kv_up": "TEColumnParallelLinear",
        "out": "TERowParallelLinear",
        "norm": "RMSNorm",
    }
    dense = {"fc1": "TEColumnParallelLinear", "fc2": "TERowParallelLinear"}
    mixture = {
        "experts": "TEGroupedMLP",
        "expert_fc1": "TEColumnParallelGroupedLinear",
        "shared_fc2": "TERowParallelLinear",
    }
    for config, attention in ((run, "MLASelfAttention"), (sparse, "SparseSelfAttention")):
        (found,) = ranks(config, "parts_on_cuda")
        parts = {**common, "attention": attention}
        assert found == [{**parts, **dense}, {**parts, **mixture}, {**parts, **mixture}]


def test_a_grouped_experts_weight_has_the_name_of_its_own(ranks, run):
    split = layout(run, 2, expert=2)
    names = ranks(split, "hf_names_of", "decoder.layers.1.mlp.experts.linear_fc1.weight3")
    for rank, found in enumerate(names):
        place = f"model.layers.1.mlp.experts.{rank * 4 + 3}"
        assert found == (f"{place}.gate_proj.weight", f"{place}.up_proj.weight")


def test_a_missing_transformer_engine_is_one_sentence(ranks, run):
    with pytest.raises(AssertionError, match=r"UserError: .*needs Transformer Engine.*install"):
        ranks(layout(run, 1, device=Device.cuda), "newest_intact", None)


def test_the_check_of_a_gpu_says_when_there_is_none():
    command = [sys.executable, "-m", "benchmarks.gpu_check"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 2
    assert found.stdout.startswith("No GPU: ")
    assert not found.stderr


def test_the_check_measures_each_kind_against_the_largest_value_of_its_tensor():
    one = {
        "logp": np.array([-4.0, -2.0]),
        "gradient a": np.array([1.0, 0.0]),
        "gradient b": np.array([100.0, 1.0]),
        "weight a": np.array([1.0]),
    }
    other = {
        "logp": np.array([-4.0, -2.5]),
        "gradient a": np.array([1.0, 0.25]),
        "gradient b": np.array([100.0, 2.0]),
        "weight a": np.array([np.nan]),
    }
    assert differences(one, other) == {
        "logp": 0.125,
        "entropy": 0.0,
        "gradient": 0.25,
        "weight": float("inf"),
    }
    with pytest.raises(ValueError, match="weight b"):
        differences(one, {**other, "weight b": np.zeros(1)})
