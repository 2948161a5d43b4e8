"""The samples of one step or one evaluation, all of one weight version.

What a batch holds depends on the run's seed and the weights alone, not on the order in which
samples finish.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any, Protocol

from ..config.schema import RunConfig
from . import schedule
from .batch import Sample
from .episode import Limits
from .groups import MAX_DRAWS, Judge, why
from .outcome import has_verdict
from .player import Player, RolloutError, Wanted


class Keeper(Protocol):
    """Who keeps the samples of an evaluation as they finish."""

    def kept(self, group: int, index: int) -> Sample | None:
        """One that is there already, and not played again."""

    async def keep(self, sample: Sample) -> None:
        """One has ended, with a verdict or after all attempts without."""

    def lost(self, sample: Sample) -> None:
        """One got no verdict; it may be tried again."""


class Collector:
    """Collects the batches of synchronous mode, and evaluations."""

    def __init__(self, config: RunConfig, player: Player, judge: Judge) -> None:
        self._config, self._player, self._judge = config, player, judge

    async def step(
        self, tasks: Sequence[str], step: int, version: int
    ) -> tuple[list[Sample], dict[str, float]]:
        """The batch of training step `step`, of weight version `version`, and its costs.

        Groups that a filter drops are replaced by further draws. Rows come in order of
        (group, index), with penalties and advantages.
        Raises RolloutError when samples get no verdict or filters leave too few groups.
        """
        rollout = self._config.rollout
        limits = Limits.of(self._config, rollout.temperature)
        wanted, repeats = rollout.prompts_per_step, rollout.groups_per_draw
        drawn = enumerate(schedule.draws(tasks, self._config.seed, step, wanted, repeats))
        self._player.progress.enter("generate", step, wanted * rollout.samples_per_prompt)
        began = perf_counter()
        kept: list[list[Sample]] = []
        async with _tasks() as running:
            while len(kept) < wanted:
                while len(running) + len(kept) < wanted:
                    group, task_id = self._next_draw(drawn, step, len(kept))
                    playing = self._group(step, group, task_id, limits, version)
                    running.add(asyncio.create_task(playing))
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                running -= done
                for finished in done:
                    if self._judge.dropped_by(finished.result()) is None:
                        kept.append(finished.result())
        samples = [s for samples in sorted(kept, key=lambda g: g[0].group) for s in samples]
        return samples, self._player.cost("generate", perf_counter() - began)

    async def evaluation(
        self, tasks: Sequence[str], step: int, keeper: Keeper
    ) -> tuple[list[Sample], dict[str, float]]:
        """``eval.samples_per_task`` samples of each task, and their cost.

        All are of the weights after `step` steps. Random numbers depend on task and sample, not on
        `step`: the same weights score the same, and two evaluations differ by what the weights
        changed. `keeper` has some already, and gets the others as they end. A sample that gets no
        verdict is left out and counted as ``missing``. Raises RolloutError when none gets one.
        """
        each = self._config.eval.samples_per_task
        limits = Limits.of(self._config, self._config.eval.temperature)
        self._player.progress.enter("eval", step, len(tasks) * each)
        began = perf_counter()
        async with _tasks() as running:
            for group, task_id in enumerate(tasks):
                for index in range(each):
                    place = ("eval", task_id, index)
                    wanted = Wanted(step, group, index, task_id, place, step, phase="eval")
                    running.add(asyncio.create_task(self._evaluated(wanted, limits, keeper)))
            samples = list(await asyncio.gather(*running))
        judged = [s for s in samples if has_verdict(s.end_reason)]
        if not judged:
            raise RolloutError(f"not one sample of evaluation {step} got a verdict: {why(samples)}")
        stats = self._player.cost("eval", perf_counter() - began)
        stats["missing"] = len(samples) - len(judged)
        return sorted(judged, key=lambda s: (s.group, s.index)), stats

    async def _evaluated(self, wanted: Wanted, limits: Limits, keeper: Keeper) -> Sample:
        sample = keeper.kept(wanted.group, wanted.index)
        if sample is not None:
            self._player.progress.samples_done += 1
            self._player.progress.reward_sum += sample.reward
            return sample
        sample = await self._player.obtain(wanted, limits, keeper.lost)
        await keeper.keep(sample)
        return sample

    def _next_draw(
        self, drawn: Iterator[tuple[int, str]], step: int, num_kept: int
    ) -> tuple[int, str]:
        group, task_id = next(drawn)
        if group >= MAX_DRAWS * self._config.rollout.prompts_per_step:
            raise self._judge.too_few(step, num_kept, group)
        return group, task_id

    async def _group(
        self, step: int, group: int, task_id: str, limits: Limits, version: int
    ) -> list[Sample]:
        async with _tasks() as running:
            for index in range(self._config.rollout.samples_per_prompt):
                wanted = Wanted(step, group, index, task_id, (step, group, index), version)
                running.add(asyncio.create_task(self._player.obtain(wanted, limits)))
            samples = sorted(await asyncio.gather(*running), key=lambda s: s.index)
        self._judge.rate(samples)
        return samples


@asynccontextmanager
async def _tasks() -> AsyncIterator[set["asyncio.Task[Any]"]]:
    """A set of tasks, none of which outlives the block."""
    running: set[asyncio.Task[Any]] = set()
    try:
        yield running
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
