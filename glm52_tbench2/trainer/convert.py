"""Weights between transformers' files and the Megatron model: names, layouts and shards.

Streams one tensor at a time in both directions. transformers keeps gate and up projection apart
where Megatron stacks them in ``linear_fc1``; everything else is renamed only.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from safetensors import safe_open
from torch import Tensor

from glm52_tbench2.config.errors import UserError

from .model import PolicyModel

FLOATS = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""What weights may be stored in, by the names of safetensors: fp8 would need its scales."""

_OUTSIDE_LAYERS = {
    "embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "decoder.final_layernorm.weight": "model.norm.weight",
    "output_layer.weight": "lm_head.weight",
}
_IN_A_LAYER = {
    "input_layernorm.weight": "input_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "self_attention.linear_q_down_proj.weight": "self_attn.q_a_proj.weight",
    "self_attention.q_layernorm.weight": "self_attn.q_a_layernorm.weight",
    "self_attention.linear_q_up_proj.weight": "self_attn.q_b_proj.weight",
    "self_attention.linear_kv_down_proj.weight": "self_attn.kv_a_proj_with_mqa.weight",
    "self_attention.kv_layernorm.weight": "self_attn.kv_a_layernorm.weight",
    "self_attention.linear_kv_up_proj.weight": "self_attn.kv_b_proj.weight",
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "self_attention.indexer.wq_b.weight": "self_attn.indexer.wq_b.weight",
    "self_attention.indexer.wk.weight": "self_attn.indexer.wk.weight",
    "self_attention.indexer.k_norm.weight": "self_attn.indexer.k_norm.weight",
    "self_attention.indexer.k_norm.bias": "self_attn.indexer.k_norm.bias",
    "self_attention.indexer.weights_proj.weight": "self_attn.indexer.weights_proj.weight",
    "mlp.router.weight": "mlp.gate.weight",
    "mlp.router.expert_bias": "mlp.gate.e_score_correction_bias",
}
_MLP = {
    "linear_fc1.weight": ("gate_proj.weight", "up_proj.weight"),
    "linear_fc2.weight": ("down_proj.weight",),
}


@dataclass
class Weight:
    """One weight of this rank."""

    names: tuple[str, ...]
    """Its tensors in transformers' files: one, or gate and up, which it stacks along dim 0."""
    local: Tensor
    """This rank's shard, sharing memory with the model."""
    dim: int | None
    """The dimension along which tensor-parallel ranks share it; None: each has it whole."""
    shard: int
    """Which shard this rank has."""
    num_shards: int
    """Tensor-parallel ranks that share it."""


def local_weights(model: PolicyModel) -> list[Weight]:
    """Every weight of this rank, frozen expert biases included."""
    found = []
    named = dict(model.named_parameters()) | {
        name: buffer for name, buffer in model.named_buffers() if name.endswith("expert_bias")
    }
    for name, tensor in named.items():
        if ".experts." in name:
            rank = parallel_state.get_expert_tensor_parallel_rank()
            size = parallel_state.get_expert_tensor_parallel_world_size()
            split, dim = size > 1, 0 if ".linear_fc1." in name else 1
        else:
            rank = parallel_state.get_tensor_model_parallel_rank()
            size = parallel_state.get_tensor_model_parallel_world_size()
            split = getattr(tensor, "tensor_model_parallel", False) and size > 1
            dim = tensor.partition_dim if split else 0
        found.append(
            Weight(
                hf_names(name, model),
                tensor.detach(),
                dim if split else None,
                rank if split else 0,
                size if split else 1,
            )
        )
    return found


def load_hf(model: PolicyModel, folder: Path) -> None:
    """Fills the model from the safetensors files in `folder`; each rank reads its shards only.

    Raises UserError for a missing tensor, one of another shape, or layers the model lacks.
    """
    files = _index(folder)
    for weight in local_weights(model):
        parts = [_read_shard(weight, name, files, folder) for name in weight.names]
        weight.local.copy_(torch.cat(parts) if len(parts) > 1 else parts[0])


def export_hf(model: PolicyModel, folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yields (name, tensor) for every tensor of transformers' format, on rank 0.

    What the starting weights in `folder` have and the model lacks, as a layer that predicts several
    tokens, comes from there as it is. A collective: all ranks must exhaust it, and on the others it
    yields nothing. Shards travel to rank 0 one at a time. The tensors may share memory with the
    model: copy what outlives a step.
    """
    weights = local_weights(model)
    me = dist.get_rank()
    described = [(w.names, w.dim, w.shard, w.num_shards, tuple(w.local.shape)) for w in weights]
    of_ranks: list[list[Any]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(of_ranks, described)

    # names -> shard -> the lowest rank that has it
    sources: dict[tuple[str, ...], dict[int, tuple[int, Any]]] = {}
    for rank, entries in enumerate(of_ranks):
        for entry in entries:
            sources.setdefault(entry[0], {}).setdefault(entry[2], (rank, entry))
    mine = {w.names: w for w in weights}
    untrained = {} if me else _index(folder)
    for names, shards in sources.items():
        received = []
        for _, (rank, entry) in sorted(shards.items()):
            if rank == me == 0:
                received.append(mine[names].local)
            elif me == 0:
                like = weights[0].local
                received.append(
                    torch.empty(entry[4], dtype=_dtype(names, like), device=like.device)
                )
                dist.recv(received[-1], rank)
            elif rank == me:
                dist.send(mine[names].local.contiguous(), 0)
        if me == 0:
            united = _unite(received, len(names), entry[1])
            received.clear()
            for name in names:
                untrained.pop(name, None)
                yield name, united.pop(0)
    yield from ((name, file.get_tensor(name)) for name, file in sorted(untrained.items()))


def hf_names(name: str, model: PolicyModel) -> tuple[str, ...]:
    """A weight's tensors in transformers' files: one, or gate and up, which it stacks."""
    if name in _OUTSIDE_LAYERS:
        return (_OUTSIDE_LAYERS[name],)
    found = re.fullmatch(r"decoder\.layers\.(\d+)\.(.+)", name)
    assert found, name
    layer, rest = model.decoder.layers[int(found[1])], found[2]
    prefix = f"model.layers.{layer.layer_number - 1}."
    if rest in _IN_A_LAYER:
        return (prefix + _IN_A_LAYER[rest],)
    # Experts are modules of their own, or, where one product computes all, numbered weights of one.
    place, kind, number = re.fullmatch(r"(.+)\.(linear_fc[12]\.weight)(\d*)", rest).groups()  # type: ignore[union-attr]
    if expert := re.fullmatch(r"mlp\.experts(?:\.local_experts\.(\d+))?", place):
        place = f"mlp.experts.{layer.mlp.local_expert_indices[int(expert[1] or number)]}"
    return tuple(f"{prefix}{place}.{part}" for part in _MLP[kind])


def _index(folder: Path) -> dict[str, Any]:
    """Tensor -> the open file that has it; files are mapped into memory, not read."""
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise UserError(f"model.path {folder} holds no *.safetensors file.")
    files: dict[str, Any] = {}
    for path in paths:
        handle = safe_open(path, framework="pt")
        files |= dict.fromkeys(handle.keys(), handle)
    return files


def _read_shard(weight: Weight, name: str, files: dict[str, Any], folder: Path) -> Tensor:
    if name not in files:
        raise UserError(f"{folder} lacks the tensor {name}, which the model config asks for.")
    tensor = files[name].get_slice(name)
    expected = list(weight.local.shape)
    if len(weight.names) == 2:
        expected[0] //= 2
    if tensor.get_dtype() not in FLOATS:
        raise UserError(
            f"{folder}: {name} is {tensor.get_dtype()}; name a folder of the weights in bfloat16 "
            "or float32."
        )
    shard = [slice(0, size) for size in expected]
    if weight.dim is not None:
        start = weight.shard * expected[weight.dim]
        shard[weight.dim] = slice(start, start + expected[weight.dim])
        expected[weight.dim] *= weight.num_shards
    if tensor.get_shape() != expected:
        raise UserError(
            f"{folder}: {name} has shape {tensor.get_shape()}, "
            f"the model config makes it {expected}."
        )
    return tensor[tuple(shard)]


def _dtype(names: tuple[str, ...], like: Tensor) -> torch.dtype:
    return torch.float32 if names[0].endswith("e_score_correction_bias") else like.dtype


def _unite(shards: list[Tensor], num_tensors: int, dim: int | None) -> list[Tensor]:
    """The whole tensors from the shards of a weight that stacks `num_tensors` of them."""
    parts = zip(*(shard.chunk(num_tensors) for shard in shards), strict=True)
    return [part[0] if dim is None else torch.cat(part, dim) for part in parts]
