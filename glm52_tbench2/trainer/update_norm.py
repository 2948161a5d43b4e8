"""How far an update of Adam moved the weights, told by what it left: no copy is kept."""

from collections.abc import Mapping
from typing import Any

import torch
from megatron.core import tensor_parallel
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.transformer.module import param_is_not_shared
from torch import Tensor

_CHUNK = 2**22
"""Elements looked at at one time."""


def squares(
    weight: Tensor, state: Mapping[str, Any], step: int, group: Mapping[str, Any]
) -> Tensor:
    """Sums of squares over a weight: of its change in its last update, and of itself.

    Decoupled weight decay (Loshchilov and Hutter 2019) makes w' = (1 - lr wd) w - lr u, where
    u = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps), so w is known from w'.

    Args:
        weight: w', float32, any shape.
        state: m as exp_avg and v as exp_avg_sq, after the update and shaped like it.
        step: t, 1-based.
        group: lr, betas, eps and weight_decay of the update.

    Returns:
        [2] float64.
    """
    beta1, beta2 = group["betas"]
    rate, kept = group["lr"], 1 - group["lr"] * group["weight_decay"]
    found = weight.new_zeros(2, dtype=torch.float64)
    flat = (weight.detach(), state["exp_avg"], state["exp_avg_sq"])
    for w, m, v in zip(*(t.view(-1).split(_CHUNK) for t in flat), strict=True):
        u = m / (1 - beta1**step)
        u /= (v / (1 - beta2**step)).sqrt_().add_(group["eps"])
        change = w - (w + rate * u) / kept if kept != 1 else rate * u
        found += torch.stack([change.square().sum(), w.square().sum()]).double()
    return found


def counts_once(parameter: Tensor, part: MegatronOptimizer) -> bool:
    """Whether this rank speaks for the parameter: no other of its tensor-parallel group does."""
    once: bool = tensor_parallel.param_is_not_tensor_parallel_duplicate(parameter, part.tp_group)
    return once and param_is_not_shared(parameter)
