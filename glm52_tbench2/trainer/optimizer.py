"""Adam in Megatron's optimizer, with a learning rate that warms up and stays."""

from typing import Any

from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from torch import Tensor

from glm52_tbench2.config.schema import DType, OptimConfig, RunConfig


def build_optimizer(run: RunConfig, model: DistributedDataParallel) -> MegatronOptimizer:
    """Decoupled-weight-decay Adam on the float32 master weights of `model`.

    Norms and biases are not decayed; the experts' routing biases are no parameters and stay fixed.
    Under bfloat16 the master weights are copied from the model's, now and by reload_model_params.
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
        bf16=run.model.dtype is DType.bfloat16,
        params_dtype=model.config.params_dtype,
    )
    model.config.finalize_model_grads_func = _finalize
    optimizer = get_megatron_optimizer(config, [model])
    for group in optimizer.param_groups:
        # Megatron leaves this to its scheduler, which also bends the decay over time.
        group["weight_decay"] = optim.weight_decay * group["wd_mult"]
    return optimizer


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
