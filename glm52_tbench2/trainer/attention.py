"""The parts of a layer that Megatron leaves to Transformer Engine, in plain torch.

Attention over packed sequences with multi-head latent attention's head sizes, and an RMSNorm that
works with sequence parallelism.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn import functional as F


@dataclass
class Packed(PackedSeqParams):
    """Which tokens of a micro-batch belong together: sequences one after another (``thd``)."""

    lengths: list[int] = field(default_factory=list)
    """Tokens of each sequence; kept on the host, so that no layer has to ask the device."""

    @classmethod
    def of(cls, lengths: list[int], device: torch.device) -> "Packed":
        """The layout of sequences of these lengths, each at least 1."""
        ends = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        cu_seqlens, longest = ends.to(device), max(lengths)
        return cls("thd", cu_seqlens, cu_seqlens, None, None, longest, longest, lengths=lengths)


class PackedAttention(MegatronModule):
    """Causal self-attention inside each packed sequence, by scaled_dot_product_attention."""

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
            query, key: [tokens, heads of this rank, qk head size]
            value: [tokens, heads of this rank, v head size]
            attention_mask: ignored, the packing says it all.

        Returns:
            [tokens, heads of this rank, v head size]
        """
        lengths = packed_seq_params.lengths
        # [t, n, d] -> one [1, n, t_i, d] a sequence
        sequences = zip(
            *(x.transpose(0, 1).unsqueeze(0).split(lengths, dim=2) for x in (query, key, value)),
            strict=True,
        )
        attended = [
            F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.softmax_scale)
            for q, k, v in sequences
        ]
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
