"""The parts of a layer that Megatron leaves to Transformer Engine, in plain torch.

Attention over packed sequences with multi-head latent attention's head sizes, and an RMSNorm that
works with sequence parallelism.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right

from .packed import MAX_QUERIES, Block, Packed


class PackedAttention(MegatronModule):
    """Causal self-attention inside each packed sequence, by scaled_dot_product_attention.

    Context-parallel ranks attend with their own queries to everybody's keys and values, gathered
    here; the gradients of those are added up over the ranks. Sparse attention masks the keys that
    were not chosen, which costs as much time as attending to all of them.
    """

    def __init__(
        self, config: TransformerConfig, layer_number: int, softmax_scale: float, **_: Any
    ) -> None:
        super().__init__(config)
        self.layer_number, self.softmax_scale = layer_number, softmax_scale

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        packed_seq_params: Packed,
        **_: Any,
    ) -> Tensor:
        """Attends.

        Args:
            query, key: [tokens of this rank, heads of this rank, qk head size]
            value: [tokens of this rank, heads of this rank, v head size]
            attention_mask: ignored, the packing says it all.

        Returns:
            [tokens of this rank, heads of this rank, v head size]
        """
        packed, chosen = packed_seq_params, packed_seq_params.choice(self.layer_number)
        parts = [part for block in packed.blocks for part in _parts(block, chosen)]
        # Split, not sliced: the backward pass of each slice would fill a tensor of all tokens.
        queries = query.split([part.num_queries for part in parts])
        sequences = {
            first: pair
            for first, *pair in zip(
                np.cumsum([0, *packed.lengths]).tolist(),
                packed.whole(key).split(packed.lengths),
                packed.whole(value).split(packed.lengths),
                strict=False,
            )
        }
        attended = []
        for part, q in zip(parts, queries, strict=True):
            k, v = (
                x if len(x) == part.num_keys else x[: part.num_keys]
                for x in sequences[part.first_key]
            )
            # [t, n, d] -> [1, n, t, d]
            q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
            mask = _mask(part, chosen)
            attended.append(F.scaled_dot_product_attention(q, k, v, mask, scale=self.softmax_scale))
        return torch.cat(attended, dim=2).squeeze(0).transpose(0, 1)


def _parts(block: Block, chosen: Tensor | None) -> Iterator[Block]:
    """A block's queries as they are attended with: with masks of their own, not too many."""
    if chosen is None:
        yield block
    else:
        yield from block.within(block.queries.start, block.queries.stop, MAX_QUERIES)


def _mask(part: Block, chosen: Tensor | None) -> Tensor:
    """[queries, keys], the keys that each query attends to."""
    if chosen is None or part.num_keys <= chosen.size(1):
        return causal_lower_right(part.num_queries, part.num_keys)
    mask = part.causal_mask(chosen.device)
    # A query that sees fewer keys than are kept has others in its list, maybe past this part's.
    keys = chosen[part.queries].long().clamp_(max=part.num_keys - 1)
    return mask & torch.zeros_like(mask).scatter_(1, keys, True)


class RMSNorm(torch.nn.Module):
    """x / rms(x) * weight, in float32, over the last dimension."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float, **_: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        # Tells Megatron to add up this weight's gradients over the ranks that share the sequence.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] -> [..., hidden], same dtype."""
        normed = F.rms_norm(x.float(), (x.size(-1),), eps=self.eps)
        return self.weight * normed.to(x.dtype)
