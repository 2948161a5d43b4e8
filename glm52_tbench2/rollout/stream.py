"""Fully asynchronous rollout: samples in flight across steps, batches as groups finish.

A slot is freed by each sample's end and taken by the next sample at once, of the same group or
another; which group may start and which batch takes it is :mod:`.admission`'s to say.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from ..config.schema import RunConfig
from . import schedule
from .admission import Admission
from .batch import Sample
from .endpoints import POLL_S
from .episode import Limits
from .groups import MAX_DRAWS, Judge
from .ledger import Ledger
from .outcome import has_verdict
from .player import Player, Wanted

_RATE_S = 60.0
"""Tokens a second are taken over at least this long: two batches may be complete at one moment."""
TOO_OLD = "max_staleness"
"""Why a group is dropped that holds tokens older than allowed. Admission sees to it that none is:
this proves it."""


class Weights(Protocol):
    """Who knows which weights the engines serve."""

    async def weights(self) -> int | None:
        """The newest version every engine serves; None before the first."""


@dataclass
class _Group:
    """One group in flight."""

    number: int
    task_id: str
    version: int
    """Served when it was started: none of its tokens is older."""
    to_start: deque[int]
    samples: list[Sample] = field(default_factory=list)
    started: dict[int, float] = field(default_factory=dict)
    """Index of a sample in flight -> when it was started."""


class Stream:
    """Keeps samples in flight and makes batches of them.

    `run` works in the background; `take` waits for the next batch.
    """

    def __init__(
        self,
        run_dir: Path,
        config: RunConfig,
        identity: str,
        tasks: Sequence[str],
        player: Player,
        judge: Judge,
        weights: Weights,
    ) -> None:
        self._config, self._tasks = config, tasks
        self._player, self._judge, self._weights = player, judge, weights
        self._ledger = Ledger(run_dir, identity)
        self._limits = Limits.of(config, config.rollout.temperature)
        self._groups: dict[int, _Group] = {}
        """Those that run."""
        self._finished: dict[int, list[Sample]] = {}
        """Those that are complete and in no batch yet."""
        self._version = 0
        self._num_playing = 0
        self._dropped_since = 0
        self._began = perf_counter()
        self._may_start, self._may_take = asyncio.Event(), asyncio.Event()

    def open(
        self, steps: Sequence[int], batches: Mapping[int, Collection[int]], version: int
    ) -> None:
        """Goes on from what files hold.

        Args:
            steps: those whose batches are to be made, in their order.
            batches: step -> its groups, of those that are there.
            version: what every engine serves.
        """
        rollout = self._config.rollout
        left = self._ledger.left(batches)
        self._player.stats["generate"].update(left.stats)
        self._version = version
        self._books = Admission(
            rollout.prompts_per_step,
            steps,
            rollout.max_staleness,
            rollout.batch_order,
            rollout.max_waiting_batches,
            left.dropped.union(*batches.values()),
        )
        for number, samples in sorted(left.samples.items()):
            self._books.restore(number, _oldest(samples))
            missing = set(range(rollout.samples_per_prompt)) - {s.index for s in samples}
            group = _Group(number, samples[0].task_id, version, deque(sorted(missing)), samples)
            self._groups[number] = group
            self._finish_if_complete(group)

    async def run(self, spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]) -> None:
        """Starts samples as slots and admission allow, until cancelled; `spawn` runs each."""
        watching = spawn(self._watch_weights())
        try:
            while True:
                while self._num_playing < self._player.num_slots and (next_one := self._next()):
                    group, index = next_one
                    self._num_playing += 1
                    group.started[index] = perf_counter()
                    self._ledger.started(group.number, index, group.task_id, group.version)
                    spawn(self._play(group, index))
                await self._may_start.wait()
                self._may_start.clear()
        finally:
            watching.cancel()

    async def take(self) -> tuple[list[Sample], dict[str, float]]:
        """The next batch and its costs, in order of (group, index).

        Raises RolloutError when filters leave too few groups.
        """
        rollout = self._config.rollout
        step = self._books.step
        self._player.progress.enter(
            "generate", step, rollout.prompts_per_step * rollout.samples_per_prompt
        )
        self._drop_too_old(step)
        while (numbers := self._books.take()) is None:
            self._show()
            await self._may_take.wait()
            self._may_take.clear()
            self._drop_too_old(step)
        batch = [self._finished.pop(number) for number in numbers]
        samples = [sample for group in batch for sample in group]
        for sample in samples:
            sample.step = step
            sample.sample_id = f"{step:06d}-{sample.group}-{sample.index}"
        self._dropped_since = 0
        self._ledger.batch(step, numbers)
        self._may_start.set()
        return samples, {**self._cost(), **self._overtaken(samples)}

    def written(self, samples: Sequence[Sample]) -> None:
        """The batch is on disk: what was kept of it elsewhere may go."""
        self._ledger.forget(sorted({sample.group for sample in samples}))

    # --- samples ---------------------------------------------------------------------------------

    def _next(self) -> tuple[_Group, int] | None:
        """The next sample to start, of a group that has begun before a new one."""
        for group in self._groups.values():
            if group.to_start:
                return group, group.to_start.popleft()
        if not self._books.may_start(self._version):
            return None
        number, rollout = self._books.start(self._version), self._config.rollout
        task_id = schedule.draw(self._tasks, self._config.seed, number, rollout.groups_per_draw)
        indices = deque(range(rollout.samples_per_prompt))
        group = self._groups[number] = _Group(number, task_id, self._version, indices)
        return group, group.to_start.popleft()

    async def _play(self, group: _Group, index: int) -> None:
        wanted = Wanted(
            step=0,
            group=group.number,
            index=index,
            task_id=group.task_id,
            place=("draw", group.number, index),
            version=group.version,
            only_version=False,
        )
        sample = await self._player.obtain(wanted, self._limits, self._ledger.lost)
        if has_verdict(sample.end_reason):
            await asyncio.to_thread(self._ledger.keep, sample)
        self._num_playing -= 1
        del group.started[index]
        group.samples.append(sample)
        self._finish_if_complete(group)
        self._may_start.set()

    def _finish_if_complete(self, group: _Group) -> None:
        if len(group.samples) < self._config.rollout.samples_per_prompt:
            return
        del self._groups[group.number]
        samples = sorted(group.samples, key=lambda s: s.index)
        self._judge.rate(samples)
        if (cause := self._judge.dropped_by(samples)) is not None:
            self._drop(samples, cause)
        else:
            self._finished[group.number] = samples
            self._books.finish(group.number)
            self._may_take.set()
        self._show()

    def _drop(self, samples: Sequence[Sample], cause: str) -> None:
        self._ledger.dropped(samples, cause)
        self._books.drop(samples[0].group)
        self._may_take.set()  # a batch may have waited for this one
        self._dropped_since += 1
        wanted = self._config.rollout.prompts_per_step
        if self._dropped_since >= (MAX_DRAWS - 1) * wanted:
            kept = self._books.waiting
            raise self._judge.too_few(self._books.step, kept, self._dropped_since + kept)

    def _drop_too_old(self, step: int) -> None:
        most = self._config.rollout.max_staleness
        if most is None:
            return
        for number, samples in list(self._finished.items()):
            if _oldest(samples) < step - 1 - most:
                del self._finished[number]
                self._judge.drop(samples, TOO_OLD)
                self._drop(samples, TOO_OLD)
                self._may_start.set()

    # --- weights ---------------------------------------------------------------------------------

    async def _watch_weights(self) -> None:
        while True:
            version = await self._weights.weights()
            if version is not None and version != self._version:
                self._version = version
                self._may_start.set()
            await asyncio.sleep(POLL_S)

    # --- what is told ----------------------------------------------------------------------------

    def _show(self) -> None:
        self._player.progress.groups_waiting = self._books.waiting

    def _cost(self) -> dict[str, float]:
        """What the batch cost since the one before."""
        now = perf_counter()
        wall_s, self._began = now - self._began, now
        slots_s = self._player.num_slots * wall_s
        return {
            **self._player.cost("generate", wall_s),
            "tokens_per_s": self._player.tokens_per_s(max(wall_s, _RATE_S)),
            "slots_busy_share": self._player.busy_s() / slots_s,
            "groups_waiting": float(self._books.waiting),
        }

    def _overtaken(self, taken: Sequence[Sample]) -> dict[str, float]:
        """How far the batch favours short episodes: those it overtook, drawn before its last.

        An episode that still runs counts with its time so far, so the bias is at least this.
        """
        last = max(sample.group for sample in taken)
        now = perf_counter()
        behind = [group for group in self._groups.values() if group.number < last]
        spent = [s.total_s for group in behind for s in group.samples]
        spent += [now - since for group in behind for since in group.started.values()]
        waiting = [samples for number, samples in self._finished.items() if number < last]
        spent += [s.total_s for samples in waiting for s in samples]
        own = [s.total_s for s in taken]
        return {
            "overtaken_groups": float(len(behind) + len(waiting)),
            "completion_bias": float(np.mean(own)) / max(float(np.mean(own + spent)), 1e-9),
        }


def _oldest(samples: Sequence[Sample]) -> int:
    return min(int(s.weight_versions[s.loss_mask].min()) for s in samples)
