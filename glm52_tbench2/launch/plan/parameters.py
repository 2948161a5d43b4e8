"""How many parameters each pipeline stage puts on one of its ranks, in closed form.

:mod:`.count` builds the real model to find the same; this is for layouts by the hundred, and for
checks that must not import torch.
"""

from dataclasses import dataclass

from ...config.checks import stage_sizes
from ...config.schema import ModelConfig, ParallelConfig, RunConfig


@dataclass(frozen=True)
class StageParameters:
    """Parameters on each rank of a stage, which are as many on all of them."""

    sharded: int
    """Split over the tensor-parallel ranks: this rank's part."""
    whole: int
    """Held whole by every tensor-parallel rank."""
    experts: int
    """Of routed experts, split over expert-parallel ranks: this rank's part."""
    frozen: int
    """Held whole by every rank and not trained, as indexers are: no gradient, no state."""

    @property
    def trained(self) -> int:
        """Parameters of one rank that have a gradient."""
        return self.sharded + self.whole + self.experts

    @property
    def held(self) -> int:
        """All parameters of one rank."""
        return self.trained + self.frozen


def total(stages: list[StageParameters], parallel: ParallelConfig) -> int:
    """Parameters of the whole model, each counted once."""
    return sum(
        one.sharded * parallel.tensor
        + one.whole
        + one.frozen
        + one.experts * parallel.expert * parallel.expert_tensor
        for one in stages
    )


def active(stages: list[StageParameters], model: ModelConfig, parallel: ParallelConfig) -> int:
    """Parameters that one token meets: all but the routed experts it does not visit, and the
    embedding, of which it reads one row."""
    routed = sum(one.experts for one in stages) * parallel.expert * parallel.expert_tensor
    visited = routed * model.experts_per_token // model.num_experts
    embedding = model.vocab_size * model.hidden_size
    return total(stages, parallel) - routed + visited - embedding


def stages(config: RunConfig) -> list[StageParameters]:
    """Each pipeline stage's, in order."""
    found, first = [], 0
    for size in stage_sizes(config):
        found.append(_stage(config, range(first, first + size)))
        first += size
    return found


def _stage(config: RunConfig, layers: range) -> StageParameters:
    model, parallel = config.model, config.parallel
    hidden = model.hidden_size
    sharded = whole = experts = frozen = 0
    for layer in layers:
        sharded += attention(model)
        whole += _latents(model) + 2 * hidden
        if layer + 1 in model.index_layers:
            frozen += indexer(model)
        if layer < model.num_dense_layers:
            sharded += 3 * hidden * model.dense_ffn_size
        else:
            sharded += 3 * hidden * model.num_shared_experts * model.expert_ffn_size
            whole += hidden * model.num_experts
            experts += model.num_experts * expert(model)
    if 0 in layers:
        sharded += model.vocab_size * hidden
    if model.num_layers - 1 in layers:
        sharded += model.vocab_size * hidden
        whole += hidden
    experts //= parallel.expert * parallel.expert_tensor
    return StageParameters(sharded // parallel.tensor, whole, experts, frozen)


def attention(model: ModelConfig) -> int:
    """Of one layer, what has heads: the projections out of the latents, and the output's."""
    query = model.qk_nope_head_dim + model.qk_rope_head_dim
    return model.num_heads * (
        model.q_lora_rank * query
        + model.kv_lora_rank * (model.qk_nope_head_dim + model.v_head_dim)
        + model.v_head_dim * model.hidden_size
    )


def _latents(model: ModelConfig) -> int:
    """Of one layer, what has no heads: the projections to the latents, and their norms."""
    width = model.q_lora_rank + model.kv_lora_rank + model.qk_rope_head_dim
    return model.hidden_size * width + model.q_lora_rank + model.kv_lora_rank


def attention_whole(model: ModelConfig) -> int:
    """All of one layer's attention, without an indexer."""
    return attention(model) + _latents(model)


def indexer(model: ModelConfig) -> int:
    """Of one layer that computes indices."""
    keys = model.hidden_size * model.index_head_dim + 2 * model.index_head_dim
    queries = model.q_lora_rank * model.index_heads * model.index_head_dim
    return keys + queries + model.hidden_size * model.index_heads


def expert(model: ModelConfig) -> int:
    """Of one routed expert."""
    return 3 * model.hidden_size * model.expert_ffn_size
