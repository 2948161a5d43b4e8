"""Adam in Megatron's optimizer, with a learning rate that warms up and stays."""

import math
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing.mapping import ShardedStateDict
from megatron.core.dist_checkpointing.utils import extract_sharded_tensors_and_factories
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.optimizer import (
    ChainedOptimizer,
    MegatronOptimizer,
    OptimizerConfig,
    get_megatron_optimizer,
)
from torch import Tensor

from glm52_tbench2.config.paths import resolve
from glm52_tbench2.config.schema import DType, OptimConfig, RunConfig

from .disk_adam.optimizer import DiskAdam, on_disk
from .update_norm import counts_once, squares


def build_optimizer(run: RunConfig, model: DistributedDataParallel) -> ChainedOptimizer:
    """Decoupled-weight-decay Adam on the float32 master weights of `model`.

    Norms and biases are not decayed; the experts' routing biases are no parameters and stay fixed.
    Under bfloat16 the master weights are copied from the model's by reload_model_params, and with
    the state in memory also now.

    Raises UserError when optim.state_dir cannot take the state.
    """
    optim = run.optim
    config = OptimizerConfig(
        optimizer="adam",
        lr=optim.lr,
        weight_decay=optim.weight_decay,
        adam_beta1=optim.beta1,
        adam_beta2=optim.beta2,
        adam_eps=optim.eps,
        clip_grad=optim.clip_grad,
        # Megatron would make master weights in memory.
        bf16=run.model.dtype is DType.bfloat16 and not optim.state_on_disk,
        params_dtype=model.config.params_dtype,
    )
    model.config.finalize_model_grads_func = _finalize
    optimizer = get_megatron_optimizer(config, [model])
    for group in optimizer.param_groups:
        # Megatron leaves this to its scheduler, which also bends the decay over time.
        group["weight_decay"] = optim.weight_decay * group["wd_mult"]
    if optim.state_on_disk:
        return on_disk(optimizer, resolve(optim.state_dir), optim.state_bucket_bytes)
    return optimizer


def state_shards(
    optimizer: ChainedOptimizer, weights: ShardedStateDict, is_loading: bool
) -> dict[int, Any]:
    """The state's tensors of each chained optimizer, as shards of those of the whole model.

    How many are chained and how they group their parameters differs between layouts and is not in
    here, so that any layout can load what any other has saved.

    Args:
        weights: the model's own shards.
        is_loading: the tensors will be filled from a checkpoint.
    """
    return {
        number: extract_sharded_tensors_and_factories(
            part.sharded_state_dict(weights, is_loading=is_loading, metadata={})
        )[0]
        for number, part in enumerate(optimizer.chained_optimizers)
    }


def updates_done(optimizer: ChainedOptimizer) -> int:
    """Updates since the start of training."""
    part = optimizer.chained_optimizers[0]
    if isinstance(part, DiskAdam):
        return part.updates
    # torch's Adam counts a parameter's updates, Transformer Engine's a group's.
    states = part.optimizer.state.values()
    counts = [*(state.get("step") for state in states), *(g.get("step") for g in part.param_groups)]
    return int(next((count for count in counts if count is not None), 0))


def load_state(optimizer: ChainedOptimizer, shards: dict[int, Any], updates: int) -> None:
    """Takes over what was loaded into `state_shards`, and the number of updates done."""
    for number, part in enumerate(optimizer.chained_optimizers):
        if isinstance(part, DiskAdam):
            part.load_state_dict({"updates": updates})
            continue
        if (found := shards.get(number)) is None:
            continue  # this rank has none of its parameters, as a stage without experts
        adam = found.get("optimizer", found)
        adam["param_groups"] = part.optimizer.state_dict()["param_groups"]
        if isinstance(part.optimizer, torch.optim.AdamW):
            adam["state"]["common_step"] = torch.tensor(float(updates))
        else:
            for group in adam["param_groups"]:
                group["step"] = updates
        part.load_state_dict(found)


def update_norms(optimizer: ChainedOptimizer) -> tuple[float, float]:
    """L2 norms of the last update's change and of the weights after it. A collective.

    Over the whole model's trained parameters, each counted once; of a bfloat16 model, over its
    float32 master weights.
    """
    change, whole = 0.0, 0.0
    for part in optimizer.chained_optimizers:
        mine = torch.zeros(2, dtype=torch.float64, device=torch.cuda.current_device())
        if isinstance(part, DiskAdam):
            mine += part.squares
        else:
            for group in part.optimizer.param_groups:
                for weight in group["params"]:
                    state = part.optimizer.state.get(weight)
                    if state and counts_once(weight, part):
                        step = int(state.get("step", group.get("step")))
                        mine += squares(weight, state, step, group)
        dist.all_reduce(mine, group=part.get_grad_stats_parallel_group())
        change, whole = change + float(mine[0]), whole + float(mine[1])
    return math.sqrt(change), math.sqrt(whole)


def learning_rate(optim: OptimConfig, updates_done: int) -> float:
    """The rate of the next update: linear from 0 over `warmup_steps` steps, then constant.

    Args:
        updates_done: optimizer updates before this one.
    """
    warmup = optim.warmup_steps * optim.steps_per_batch
    return optim.lr * min(1.0, (updates_done + 1) / warmup) if warmup else optim.lr


def set_learning_rate(optimizer: MegatronOptimizer, rate: float) -> None:
    """Makes `rate` that of the next update."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def _finalize(model: list[DistributedDataParallel], num_tokens: Tensor, **kwargs: Any) -> None:
    # Losses already carry their divisors, over the whole batch: no division by a token count here.
    finalize_model_grads(model, None, **kwargs)
