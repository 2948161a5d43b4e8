"""A step of a run trained once more, and what each part of its update did to the next content."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from glm52_tbench2.analysis.run_files import RunFiles
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.paths import resolve
from glm52_tbench2.config.schema import NEAR_CAP
from glm52_tbench2.rollout.batch import BatchError, Sample, batch_path, read_batch

from .. import checkpoint, limits, ranks
from ..hf import check_hf_config
from ..microbatch import Scores
from ..model import build_model, wrap
from ..optimizer import build_optimizer
from ..step import TrainStep
from ..watch import Watch
from .parts import Part, Update

Tell = Callable[[str], None]
Row = dict[str, Any]

_SAME_LOGP = 1e-3
"""Mean distance in nats a token up to which computed log-probs are taken for the run's own."""
_REST = 0.05
"""Most of an update, by its L2 norm, that its parts may leave."""


def influence_rows(run: RunFiles, identity: str, step: int, tell: Tell) -> list[Row]:
    """A row a part of the update of `step` and turn that the policy generated for the next step.

    On one rank of a CPU, from the newest checkpoint before the step, through the steps between
    once more.

    Raises UserError where the update cannot be taken apart, or what is computed is not what the
    run did.
    """
    with ranks.one_rank():
        return list(_Again(run, identity, tell).rows(step))


class _Again:
    """The trainer of a run once more, on one rank."""

    def __init__(self, run: RunFiles, identity: str, tell: Tell) -> None:
        self._run, self._identity, self._tell = run, identity, tell
        self._config = ranks.on_one_rank(run.config)
        if problems := limits.problems(self._config):
            raise UserError(problems[0])
        check_hf_config(self._config.model, resolve(self._config.model.path))
        if threads := self._config.cluster.threads_per_trainer:
            torch.set_num_threads(threads)
        self._model = build_model(self._config)
        wrapped = wrap(self._model)
        self._optimizer = build_optimizer(self._config, wrapped)
        self._trainer = TrainStep(self._config, wrapped, self._optimizer)

    def rows(self, step: int) -> Iterator[Row]:
        begun = checkpoint.start(
            self._run.path, self._config, self._model, self._optimizer, until=step - 1
        )
        for number in range(begun + 1, step):
            self._tell(f"step {number} of {step} is trained once more")
            ranks.seed(self._config.seed, number)
            batch = self._batch(number)
            self._trainer(batch, number, self._masked(batch, number))
        self._tell(f"step {step} is trained once more")
        ranks.seed(self._config.seed, step)
        batch, content = self._batch(step), self._batch(step + 1)
        update = Update(self._config, self._trainer, batch, step, self._masked(batch, step))
        self._compare(batch, update.scores, step)
        before = update.scored(content)
        after = update.scored(content, update.whole)
        self._compare(content, after, step + 1)
        yield from self._of_turns(Part("update"), content, before, after)
        rest = [whole.clone() for whole in update.whole]
        for part, change in update.parts():
            self._tell(f"step {step}: {part.part} {part.task or ''}")
            yield from self._of_turns(part, content, before, update.scored(content, change))
            for left, moved in zip(rest, change, strict=True):
                left -= moved
        if (lost := _norm(rest)) > _REST * _norm(update.whole):
            raise UserError(
                f"The parts of step {step}'s update do not add up to it: {lost:.2g} of "
                f"{_norm(update.whole):.2g} (L2) is rounding of weights in float32, so their "
                "influence can't be told; take a step with a larger update."
            )

    def _of_turns(
        self, part: Part, content: Sequence[Sample], before: list[Scores], after: list[Scores]
    ) -> Iterator[Row]:
        least = NEAR_CAP * self._config.rollout.max_turn_tokens
        for sample, old, new in zip(content, before, after, strict=True):
            for number, turn in enumerate(sample.turns):
                change = new.logp[turn.start : turn.end] - old.logp[turn.start : turn.end]
                yield asdict(part) | {
                    "content_sample": sample.sample_id,
                    "content_task": sample.task_id,
                    "content_turn": number,
                    "content_tokens": turn.end - turn.start,
                    "content_near_cap": turn.end - turn.start >= least,
                    "change": float(change.mean(dtype=np.float64)),
                }

    def _batch(self, step: int) -> list[Sample]:
        try:
            return read_batch(batch_path(self._run.path, "rollouts", step), self._identity, step)
        except (BatchError, FileNotFoundError) as error:
            raise UserError(f"{error}; influence of this step can't be told.") from error

    def _masked(self, batch: Sequence[Sample], step: int) -> list[int]:
        """Samples that the run's sentinel left out, by place. Raises UserError where it left out
        another number than can be told now."""
        found = list(Watch(self._run.path, self._config, 0, step - 1).masked(batch))
        recorded = self._run.series("trainer/masked_samples").get(step)
        if recorded is not None and recorded != len(found):
            raise UserError(
                f"The sentinel left {recorded:.0f} samples of step {step} out of the loss, and "
                f"would leave {len(found)} now: which ones were meant can't be told."
            )
        return found

    def _compare(self, batch: Sequence[Sample], scores: Sequence[Scores], step: int) -> None:
        """Raises UserError unless `scores` are what the run's trainer had before `step`."""
        known = self._run.columns("train", step, ("sample_id", "trainer_logprobs"))
        theirs = dict(zip(*known.values(), strict=True))
        apart = [
            np.abs(found.logp - theirs[sample.sample_id])[sample.loss_mask]
            for sample, found in zip(batch, scores, strict=True)
        ]
        if (distance := float(np.concatenate(apart).mean())) > _SAME_LOGP:
            raise UserError(
                f"The log-probs of step {step}, computed once more, are {distance:.2g} nats a "
                "token from those that the run recorded: its code or weights were others, so "
                "influence can't be told."
            )


def _norm(tensors: Sequence[torch.Tensor]) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors))
