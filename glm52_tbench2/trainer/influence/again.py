"""A step of a run trained once more, and what each part of its update did to the next content."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glm52_tbench2.analysis.influence import WHOLE
from glm52_tbench2.analysis.run_files import RunFiles
from glm52_tbench2.analysis.sentinel.facts import near_cap
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.paths import resolve
from glm52_tbench2.rollout.batch import (
    BatchError,
    Sample,
    batch_path,
    read_batch,
    read_columns,
)

from .. import checkpoint, limits, ranks
from ..hf import check_hf_config
from ..model import build_model, wrap
from ..optimizer import build_optimizer
from ..step import TrainStep
from ..watch import Watch
from .parts import Logps, Part, Update, norm

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
        batch, content = self._batch(step), self._batch(step + 1)
        self._logps(step + 1)  # what is missing is told before any work
        if not any(sample.turns for sample in content):
            raise UserError(f"No sample of step {step + 1} has a turn that could be moved.")
        begun = checkpoint.start(
            self._run.path, self._config, self._model, self._optimizer, until=step - 1
        )
        for number in range(begun + 1, step):
            self._tell(f"step {number} of {step} is trained once more")
            ranks.seed(self._config.seed, number)
            past = self._batch(number)
            scores = self._trainer(past, number, self._masked(past, number)).scores
            self._compare(past, [one.logp for one in scores], number)
        self._tell(f"step {step} is trained once more")
        ranks.seed(self._config.seed, step)
        update = Update(self._config, self._trainer, batch, step, self._masked(batch, step))
        self._compare(batch, [one.logp for one in update.scores], step)
        before, after = update.logps(content), update.logps(content, 1.0)
        self._compare(content, after, step + 1)
        moved = [new - old for new, old in zip(after, before, strict=True)]
        yield from self._of_turns(Part(WHOLE), content, moved)
        rest = [whole.clone() for whole in update.whole]
        for part, change in update.parts():
            self._tell(f"step {step}: {part.part} {part.task or ''}")
            yield from self._of_turns(part, content, update.share(content, change))
            for left, taken in zip(rest, change, strict=True):
                left -= taken
        lost, whole = norm(rest), norm(update.whole)
        if not lost <= _REST * whole:
            raise UserError(
                f"The parts of step {step}'s update do not add up to it: {lost:.2g} of "
                f"{whole:.2g} (L2) is rounding of weights in float32, so their influence can't be "
                "told; take a step with a larger update."
            )

    def _of_turns(
        self, part: Part, content: Sequence[Sample], changes: Sequence[Logps]
    ) -> Iterator[Row]:
        cap = self._config.rollout.max_turn_tokens
        for sample, moved in zip(content, changes, strict=True):
            for number, turn in enumerate(sample.turns):
                yield asdict(part) | {
                    "content_sample": sample.sample_id,
                    "content_task": sample.task_id,
                    "content_turn": number,
                    "content_tokens": turn.end - turn.start,
                    "content_near_cap": near_cap(turn, cap),
                    "change": float(moved[turn.start : turn.end].mean(dtype=np.float64)),
                }

    def _batch(self, step: int) -> list[Sample]:
        path = batch_path(self._run.path, "rollouts", step)
        with _told(path):
            return read_batch(path, self._identity, step)

    def _logps(self, step: int) -> dict[str, Logps]:
        """Sample -> log-probs that the run's trainer recorded before `step`."""
        path = batch_path(self._run.path, "train", step)
        with _told(path):
            found = read_columns(path, ("sample_id", "trainer_logprobs"), self._identity, step)
        return dict(zip(map(str, found["sample_id"]), found["trainer_logprobs"], strict=True))

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

    def _compare(self, batch: Sequence[Sample], found: Sequence[Logps], step: int) -> None:
        """Raises UserError unless `found` is what the run's trainer had before `step`."""
        theirs = self._logps(step)
        sizes = {sample.sample_id: len(sample.tokens) for sample in batch}
        if {name: len(logps) for name, logps in theirs.items()} != sizes:
            raise UserError(
                f"{batch_path(self._run.path, 'train', step)} is of other samples than its "
                "rollouts, so influence can't be told."
            )
        apart = [
            np.abs(logps - theirs[sample.sample_id])[sample.loss_mask]
            for sample, logps in zip(batch, found, strict=True)
        ]
        distance = float(np.concatenate(apart).mean()) if sum(map(len, apart)) else 0.0
        if not distance <= _SAME_LOGP:
            raise UserError(
                f"The log-probs of step {step}, computed once more, are {distance:.2g} nats a "
                "token from those that the run recorded: its code or weights were others, so "
                "influence can't be told."
            )


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Tells of a file that cannot be read. Raises UserError."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path} is missing, so influence can't be told.") from None
    except BatchError as error:
        raise UserError(f"{error}, so influence can't be told.") from error
