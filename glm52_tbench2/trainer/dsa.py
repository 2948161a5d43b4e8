"""Sparse attention of GLM-5.2: an indexer chooses the keys that each query attends to.

Only some layers have an indexer; the others use the last choice made before them, which is why
every pipeline stage starts on a layer that has one. The choice is hard, so no gradient of the loss
reaches an indexer: its weights are frozen, and no optimizer holds or decays them.
"""

from collections.abc import Sequence
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.multi_latent_attention import MLASelfAttention
from megatron.core.transformer.transformer_config import MLATransformerConfig
from torch import Tensor
from torch.nn import functional as F

from .packed import MAX_QUERIES, Packed

# transformers fixes it, whatever norm_eps says.
_KEY_NORM_EPS = 1e-6


class SparseSelfAttention(MLASelfAttention):
    """Multi-latent attention that leaves its indexer's choice with the micro-batch."""

    def __init__(
        self,
        config: MLATransformerConfig,
        *args: Any,
        layer_number: int,
        index_layers: Sequence[int],
        **kwargs: Any,
    ) -> None:
        super().__init__(config, *args, layer_number=layer_number, **kwargs)
        self.indexer = Indexer(config) if layer_number in index_layers else None

    def get_query_key_value_tensors(
        self,
        hidden_states: Tensor,
        key_value_states: Tensor | None = None,
        position_ids: Tensor | None = None,
        packed_seq_params: Packed | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, ...]:
        """Megatron's, and the choice of keys from what both compute."""
        found = super().get_query_key_value_tensors(
            hidden_states, key_value_states, position_ids, packed_seq_params, **kwargs
        )
        if self.indexer is not None:
            assert packed_seq_params is not None
            packed_seq_params.chosen[self.layer_number] = self.indexer(
                hidden_states[:, 0], found[3], packed_seq_params
            )
        return found


class Indexer(torch.nn.Module):
    """Scores every key for every query, by a few light heads, and keeps the best.

    score(q, k) = sum_h w_h relu(query_h . key), the key one for all heads. Factors above 0 on all
    of it, which transformers has, do not change what is best and are left out.
    """

    def __init__(self, config: MLATransformerConfig) -> None:
        super().__init__()
        self.heads, self.size = config.dsa_indexer_n_heads, config.dsa_indexer_head_dim
        self.top_k, self.rotary_size = config.dsa_indexer_topk, config.qk_pos_emb_head_dim
        self.rotary_base = config.rotary_base
        self.wq_b = _linear(config.q_lora_rank, self.heads * self.size, config)
        self.wk = _linear(config.hidden_size, self.size, config)
        self.k_norm = torch.nn.LayerNorm(self.size, _KEY_NORM_EPS, dtype=config.params_dtype)
        self.weights_proj = _linear(config.hidden_size, self.heads, config)
        self.requires_grad_(False)

    @torch.no_grad()
    def forward(self, hidden: Tensor, query_latent: Tensor, packed: Packed) -> Tensor:
        """Chooses keys for the queries of this context-parallel rank.

        Args:
            hidden: [tokens, hidden size], normed; this tensor-parallel rank's share of them.
            query_latent: [tokens, q_lora_rank], normed, likewise.

        Returns:
            [tokens of this context-parallel rank, top_k] int32: positions in the query's sequence.
            A query that sees no more than top_k keys gets all of them, and some that come later.
        """
        group = parallel_state.get_tensor_model_parallel_group()
        first = group.rank() * len(hidden)
        positions = packed.positions[first : first + len(hidden)]
        query = self.wq_b(query_latent).unflatten(-1, (self.heads, self.size))
        query = self._rotate(query, positions).float()
        key = self._rotate(self.k_norm(self.wk(hidden))[:, None], positions)[:, 0]
        key = packed.whole(gather_from_sequence_parallel_region(key, group=group)).float()
        weights = F.linear(hidden.float(), self.weights_proj.weight.float())

        everything = torch.arange(self.top_k, dtype=torch.int32, device=hidden.device)
        chosen = everything.repeat(len(hidden), 1)
        for block in packed.blocks:
            for part in block.within(first, first + len(hidden), MAX_QUERIES):
                if part.num_keys <= self.top_k:
                    continue
                rows = slice(part.queries.start - first, part.queries.stop - first)
                matches = torch.einsum("qhd,kd->qhk", query[rows], key[part.keys]).relu_()
                scores = torch.einsum("qhk,qh->qk", matches, weights[rows])
                scores.masked_fill_(~part.causal_mask(scores.device), float("-inf"))
                chosen[rows] = scores.topk(self.top_k).indices.int()
        return gather_from_sequence_parallel_region(chosen, group=group)

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotary embedding of the leading dimensions of [tokens, heads, size], in pairs (0, 1)."""
        rotated, rest = x.split((self.rotary_size, self.size - self.rotary_size), dim=-1)
        exponents = torch.arange(0, self.rotary_size, 2, device=x.device) / self.rotary_size
        angles = positions[:, None, None] * self.rotary_base**-exponents
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        even, odd = rotated[..., 0::2], rotated[..., 1::2]
        return torch.cat((even * cos - odd * sin, odd * cos + even * sin, rest), dim=-1)


def _linear(size_in: int, size_out: int, config: MLATransformerConfig) -> torch.nn.Linear:
    """A projection with its weight unset, whole on every rank."""
    return torch.nn.utils.skip_init(
        torch.nn.Linear, size_in, size_out, bias=False, dtype=config.params_dtype
    )
