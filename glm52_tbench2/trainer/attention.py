"""The parts of a layer that Megatron leaves to Transformer Engine, in plain torch.

Attention over packed sequences with multi-head latent attention's head sizes, and an RMSNorm that
works with sequence parallelism.
"""

from typing import Any

import torch
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right

from .packed import Packed


class PackedAttention(MegatronModule):
    """Causal self-attention inside each packed sequence, by scaled_dot_product_attention.

    Context-parallel ranks attend with their own queries to everybody's keys and values, gathered
    here; the gradients of those are added up over the ranks.
    """

    def __init__(self, config: TransformerConfig, softmax_scale: float, **_: Any) -> None:
        super().__init__(config)
        self.softmax_scale = softmax_scale

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
        attended = []
        for block in packed_seq_params.blocks:
            # [t, n, d] -> [1, n, t, d]
            q, k, v = (
                x.transpose(0, 1).unsqueeze(0)
                for x in (query[block.queries], keys[block.keys], values[block.keys])
            )
            mask = causal_lower_right(block.num_queries, block.num_keys)
            attended.append(F.scaled_dot_product_attention(q, k, v, mask, scale=self.softmax_scale))
        return torch.cat(attended, dim=2).squeeze(0).transpose(0, 1)


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
