"""The parts of a layer that Megatron leaves to Transformer Engine, in plain torch.

Attention over packed sequences with multi-head latent attention's head sizes, and an RMSNorm that
works with sequence parallelism.
"""

from collections.abc import Iterator
from typing import Any

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
        keys, values = packed_seq_params.whole(key), packed_seq_params.whole(value)
        chosen = packed_seq_params.choice(self.layer_number)
        attended = []
        for block in packed_seq_params.blocks:
            for part, mask in _masked(block, chosen):
                # [t, n, d] -> [1, n, t, d]
                q, k, v = (
                    x.transpose(0, 1).unsqueeze(0)
                    for x in (query[part.queries], keys[part.keys], values[part.keys])
                )
                attended.append(
                    F.scaled_dot_product_attention(q, k, v, mask, scale=self.softmax_scale)
                )
        return torch.cat(attended, dim=2).squeeze(0).transpose(0, 1)


def _masked(block: Block, chosen: Tensor | None) -> Iterator[tuple[Block, Tensor]]:
    """A block's queries, part by part, each with a mask of the keys it attends to."""
    if chosen is None:
        yield block, causal_lower_right(block.num_queries, block.num_keys)
        return
    for part in block.within(block.queries.start, block.queries.stop, MAX_QUERIES):
        if part.num_keys <= chosen.size(1):
            yield part, causal_lower_right(part.num_queries, part.num_keys)
        else:
            mask = part.causal_mask(chosen.device)
            kept = torch.zeros_like(mask).scatter_(1, chosen[part.queries].long(), True)
            yield part, mask & kept


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
