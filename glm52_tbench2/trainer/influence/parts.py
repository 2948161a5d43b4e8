"""The parts of one update of Adam, and the share of each in what it did.

Given the second moment, the update (Loshchilov and Hutter 2019) is linear in the gradient:

    w' - w = -lr wd w - lr m' / (1 - b1^t) / (sqrt(v' / (1 - b2^t)) + eps)
    m' = b1 m + (1 - b1) c sum_j g_j

with c of gradient clipping and g_j the gradient of the samples of group j in the loss of the whole
batch. So it is a sum of parts: one of each group, one of the momentum m of earlier steps, one of
weight decay.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glm52_tbench2.analysis.sentinel.facts import near_cap
from glm52_tbench2.config.schema import RunConfig
from glm52_tbench2.rollout.batch import Sample

from ..step import TrainStep, in_order

Change = list[Tensor]
"""Of each weight, shaped like it; float32."""
Logps = NDArray[np.float32]
"""[T] of a sample, nats; 0 on tokens that were not generated."""
_STEP = 0.25
"""Of the update's length: how far a slope looks to either side."""


@dataclass(frozen=True)
class Part:
    """A part of an update. `task`, `sign`, `near_cap` and `samples` are those of a group."""

    part: str
    """samples (a group of them), momentum (of earlier steps), decay, or update: the whole."""
    task: str | None = None
    sign: int | None = None
    """Of the advantage."""
    near_cap: bool | None = None
    """Whether its samples hold a turn near the per-turn cap."""
    samples: int | None = None


class Update:
    """The update of one step, taken back: its trainer stands at the weights before it.

    Holds seven copies of the weights beside the optimizer's state.
    """

    def __init__(
        self,
        run: RunConfig,
        trainer: TrainStep,
        batch: Sequence[Sample],
        step: int,
        masked: Sequence[int],
    ) -> None:
        """Trains `batch` but for the samples at the places `masked`, and takes it back.

        Args:
            run: float32, with one update a step and the optimizer's state in memory.
        """
        self._run, self._trainer = run, trainer
        self._batch = [
            replace(sample, advantage=0.0) if place in masked else sample
            for place, sample in enumerate(batch)
        ]
        self._before = [w.detach().clone() for w in self._weights()]
        momentum = [
            state["exp_avg"].clone() if state else None for _, state, _ in self._parameters()
        ]
        result = trainer(batch, step, masked)
        self.scores = result.scores
        """Of `batch`, by the weights before."""
        optim, gradient = run.optim, result.metrics["trainer/grad_norm"]
        # As Megatron clips.
        clipped = min(1.0, optim.clip_grad / (gradient + 1e-6)) if optim.clip_grad else 1.0
        self._share = (1 - optim.beta1) * clipped
        self.whole: Change = []
        """w' - w."""
        self._pull: Change = []
        """By how much a first moment of 1 moves each weight."""
        self._momentum: Change = []
        self._decay: Change = []
        known = zip(self._parameters(), self._before, momentum, strict=True)
        for (weight, state, group), old, moment in known:
            step_of = int(state["step"])
            scale = (state["exp_avg_sq"] / (1 - optim.beta2**step_of)).sqrt_().add_(group["eps"])
            self._pull.append(scale.reciprocal_().mul_(-group["lr"] / (1 - optim.beta1**step_of)))
            kept = torch.zeros_like(old) if moment is None else moment.mul_(optim.beta1)
            self._momentum.append(kept.mul_(self._pull[-1]))
            self._decay.append(old * (-group["lr"] * group["weight_decay"]))
            self.whole.append(weight.detach() - old)
            weight.data.copy_(old)

    def parts(self) -> Iterator[tuple[Part, Change]]:
        """The parts and what each changes. Use one before the next is taken."""
        for part, places in self._groups().items():
            self._trainer.gradient(self._batch, places)
            grads = [w.grad for w in self._weights() if w.grad is not None]
            yield part, [g * pull * self._share for g, pull in zip(grads, self._pull, strict=True)]
        yield Part("momentum"), self._momentum
        yield Part("decay"), self._decay

    def logps(self, content: Sequence[Sample], along: float = 0.0) -> list[Logps]:
        """Log-probs of `content` by the weights before the update (0), after it (1) or between."""
        return self._at(content, along, self.whole, 0.0)

    def share(self, content: Sequence[Sample], part: Change) -> list[Logps]:
        """A part's share of what the update did to the log-probs of `content`.

        The slope along the part half-way through the update, so that shares add up to the change
        but for third differences. A part alone may be far larger than the update, where others
        take most of it back: added by itself it would tell of weights that are nowhere near.
        """
        size, whole = norm(part), norm(self.whole)
        step = _STEP * whole / size if size and whole else 1.0
        up, down = (self._at(content, 0.5, part, way * step) for way in (1, -1))
        return [(one - other) / (2 * step) for one, other in zip(up, down, strict=True)]

    def _at(
        self, content: Sequence[Sample], along: float, part: Change, step: float
    ) -> list[Logps]:
        """Log-probs of `content` with so much of the update and of `part` done."""
        known = zip(self._weights(), self._before, self.whole, part, strict=True)
        for weight, old, whole, move in known:
            weight.data.copy_(old + along * whole + step * move)
        scores = in_order(self._trainer.score(content), content)
        for weight, old in zip(self._weights(), self._before, strict=True):
            weight.data.copy_(old)
        return [one.logp for one in scores]

    def _groups(self) -> dict[Part, list[int]]:
        """Samples that have a gradient, by place: by task, sign and whether near the cap."""
        found: dict[Part, list[int]] = {}
        for place, sample in enumerate(self._batch):
            sign = int(np.sign(sample.advantage))
            if sample.num_generated and (sign or self._run.clip.entropy_coef):
                cap = self._run.rollout.max_turn_tokens
                capped = any(near_cap(turn, cap) for turn in sample.turns)
                part = Part("samples", sample.task_id, sign, capped)
                found.setdefault(part, []).append(place)
        return {replace(part, samples=len(places)): places for part, places in found.items()}

    def _weights(self) -> Iterator[Tensor]:
        return (weight for weight, _, _ in self._parameters())

    def _parameters(self) -> Iterator[tuple[Tensor, dict[str, Any], dict[str, Any]]]:
        """Each weight with its state in Adam and its group."""
        for part in self._trainer.optimizer.chained_optimizers:
            for group in part.optimizer.param_groups:
                for weight in group["params"]:
                    yield weight, part.optimizer.state.get(weight, {}), group


def norm(change: Change) -> float:
    """L2, over all weights."""
    return math.sqrt(sum(float(one.double().square().sum()) for one in change))
