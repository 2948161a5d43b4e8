"""Weights in fp8 as GLM's and DeepSeek's own checkpoints have them: float8_e4m3fn in blocks.

A weight w of [rows, columns] becomes q of the same shape and, named like it with `_scale_inv`
appended, a float32 for every block of 128 x 128, cut off at the edges: w is about q x scale.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 128
"""Rows and columns that share a scale."""
LARGEST = 448.0
"""Largest number of float8_e4m3fn, which the largest of each block becomes."""

SCALES = "_scale_inv"
"""What the name of a weight's scales has behind that of the weight."""

# The linear layers that SGLang builds in fp8. Embeddings, norms, router, the indexer's head
# weights and what joins a layer that predicts several tokens stay as they are.
_QUANTISED = re.compile(
    r".+\.(self_attn\.((q_a|q_b|kv_b|o)_proj|kv_a_proj_with_mqa|indexer\.(wq_b|wk))"
    r"|mlp\.(experts\.\d+\.|shared_experts\.)?(gate|up|down)_proj)\.weight"
)
# Of a block below it the scale's inverse would overflow: it becomes zeros.
_SMALLEST = 2e-36
_STRIP = 2**24
"""Elements that are float32 at one time."""


def is_quantised(name: str) -> bool:
    """Whether a tensor, by its name in transformers' files, goes to an fp8 engine in fp8."""
    return _QUANTISED.fullmatch(name) is not None


def quantised(tensors: Iterable[tuple[str, "Tensor"]]) -> Iterator[tuple[str, "Tensor"]]:
    """The tensors as an fp8 engine takes them: a quantised one is followed by its scales."""
    for name, tensor in tensors:
        if is_quantised(name):
            weight, scales = quantise(tensor)
            yield name, weight
            yield scales_of(name), scales
        else:
            yield name, tensor


def rounded(tensors: Iterable[tuple[str, "Tensor"]]) -> Iterator[tuple[str, "Tensor"]]:
    """The tensors with the values that an fp8 engine's weights have, each in its own dtype."""
    for name, tensor in tensors:
        yield name, dequantise(*quantise(tensor)).to(tensor.dtype) if is_quantised(name) else tensor


def dequantise(weight: "Tensor", scales: "Tensor") -> "Tensor":
    """[rows, columns] float32, from what :func:`quantise` gives."""
    rows, columns = weight.shape
    wide = scales.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]
    return weight.float() * wide


def scales_of(name: str) -> str:
    """The name of a weight's scales."""
    return name + SCALES


def scales_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of the scales of a weight of that shape."""
    return tuple(-(-size // BLOCK) for size in shape)


def quantise(weight: "Tensor") -> tuple["Tensor", "Tensor"]:
    """A weight of [rows, columns] as float8_e4m3fn, and its scales [row blocks, column blocks].

    The same to the bit as transformers' quantisation, which leaves out shapes that are no multiple
    of the block.
    """
    import torch

    columns = weight.shape[1]
    down, across = scales_shape(weight.shape)
    found = torch.empty_like(weight, dtype=torch.float8_e4m3fn)
    scales = torch.empty((down, across), dtype=torch.float32, device=weight.device)
    step = max(1, _STRIP // (BLOCK * BLOCK * across))
    for first in range(0, down, step):
        source = weight[first * BLOCK : (first + step) * BLOCK]
        here = -(-len(source) // BLOCK)
        strip = torch.zeros((here * BLOCK, across * BLOCK), device=weight.device)
        strip[: len(source), :columns] = source
        blocks = strip.view(here, BLOCK, across, BLOCK)
        largest = torch.maximum(blocks.amax((1, 3)), -blocks.amin((1, 3)))
        factors = torch.where(largest < _SMALLEST, 1.0, LARGEST / largest)
        blocks.mul_(factors[:, None, :, None])
        found[first * BLOCK : (first + step) * BLOCK] = strip[: len(source), :columns]
        scales[first : first + step] = 1.0 / factors
    return found, scales


def config_entry(shapes: Mapping[str, list[int]]) -> dict[str, Any]:
    """What config.json of a folder with such weights carries as quantization_config.

    `shapes` are those of the folder's tensors by name, before or after quantisation.
    """
    kept = (
        name.removesuffix(".weight")
        for name, shape in shapes.items()
        if len(shape) == 2 and name.endswith(".weight") and not is_quantised(name)
    )
    return {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
        "modules_to_not_convert": sorted(kept),
    }


def holds_fp8(folder: Path) -> bool:
    """Whether the weights in a folder are of this kind, by its config.json."""
    entry = json.loads((folder / "config.json").read_bytes()).get("quantization_config")
    return bool(entry) and entry.get("weight_block_size") == [BLOCK, BLOCK]
