"""Samples in flight: slots, engines, replacement of lost samples, groups and evaluations.

Works on samples and the weight version they may come from. What a batch holds depends on the run's
seed and the weights alone, not on the order in which samples finish.
"""

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

from ..config.schema import Overlong, RunConfig
from . import filters, schedule
from .advantages import advantages, overlong_penalty
from .batch import Sample
from .chat import ChatLayout
from .episode import Engine, Episode, Limits, Sandbox, play
from .outcome import has_verdict
from .progress import Progress

MAX_ATTEMPTS = 6
"""Times one sample is tried; waiting 1, 2, 4, 8 and 16 s in between outlasts a server's restart."""
MAX_DRAWS = 10
"""A step draws at most this many times the groups it needs."""

log = logging.getLogger(__name__)


class RolloutError(Exception):
    """Generation cannot go on; the sentence says why. Not the user's input, so worth a retry."""


class Resources(Protocol):
    """Where episodes are played; both calls wait for a server that is being restarted."""

    async def engine(self, number: int) -> Engine:
        """The engine that sample `number` sticks to, so that its turns find their prefix cached."""

    async def open_sandbox(self) -> Sandbox:
        """A fresh session with the environment."""

    async def weights_at(self, version: int) -> None:
        """Returns once every engine serves exactly `version`."""


@dataclass(frozen=True)
class _Wanted:
    """One sample to obtain."""

    step: int
    group: int
    index: int
    task_id: str
    place: tuple[Any, ...]
    """What its random numbers depend on, besides the run's seed and the turn."""


class Collector:
    """Plays the episodes of steps and evaluations.

    At most ``rollout.max_concurrent_samples`` are in flight; a slot is freed by each sample's end.
    """

    def __init__(
        self, config: RunConfig, chat: ChatLayout, resources: Resources, progress: Progress
    ) -> None:
        self._config, self._chat, self._resources = config, chat, resources
        self._progress = progress
        self._slots = asyncio.Semaphore(
            min(config.rollout.max_concurrent_samples, config.sandbox.max_concurrent)
        )
        self._filters = filters.named(config.rollout.filters)
        # A restarted driver must not reuse the request ids of the one before.
        self._life = uuid.uuid4().hex[:8]
        self._stats: Counter[str] = Counter()

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
        drawn = enumerate(schedule.draws(tasks, self._config.seed, step, rollout.prompts_per_step))
        wanted = rollout.prompts_per_step
        self._progress.enter("generate", step, wanted * rollout.samples_per_prompt)
        async with self._measured() as stats, _tasks() as running:
            kept: list[list[Sample]] = []
            while len(kept) < wanted:
                while len(running) + len(kept) < wanted:
                    group, task_id = self._next_draw(drawn, step, len(kept))
                    playing = self._group(step, group, task_id, limits, version)
                    running.add(asyncio.create_task(playing))
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                running -= done
                for finished in done:
                    group_samples = finished.result()
                    if self._keeps(group_samples):
                        kept.append(group_samples)
        samples = [s for samples in sorted(kept, key=lambda g: g[0].group) for s in samples]
        return samples, stats

    async def evaluation(
        self, tasks: Sequence[str], step: int, version: int
    ) -> tuple[list[Sample], dict[str, float]]:
        """``eval.samples_per_task`` samples of each task, and their cost.

        Random numbers depend on task and sample, not on `step`: the same weights score the same,
        and two evaluations differ by what the weights changed. A sample that gets no verdict is
        left out and counted as ``missing``. Raises RolloutError when none gets one.
        """
        each = self._config.eval.samples_per_task
        limits = Limits.of(self._config, self._config.eval.temperature)
        self._progress.enter("eval", step, len(tasks) * each)
        async with self._measured() as stats, _tasks() as running:
            for group, task_id in enumerate(tasks):
                for index in range(each):
                    wanted = _Wanted(step, group, index, task_id, ("eval", task_id, index))
                    running.add(asyncio.create_task(self._obtain(wanted, limits, version)))
            samples = list(await asyncio.gather(*running))
        judged = [s for s in samples if has_verdict(s.end_reason)]
        if not judged:
            raise RolloutError(
                f"not one sample of evaluation {step} got a verdict: {_why(samples)}"
            )
        stats["missing"] = len(samples) - len(judged)
        return sorted(judged, key=lambda s: (s.group, s.index)), stats

    def _next_draw(
        self, drawn: Iterator[tuple[int, str]], step: int, num_kept: int
    ) -> tuple[int, str]:
        group, task_id = next(drawn)
        wanted = self._config.rollout.prompts_per_step
        if group >= MAX_DRAWS * wanted:
            dropped = ", ".join(
                f"{name.removeprefix('dropped/')} dropped {count}"
                for name, count in sorted(self._stats.items())
                if name.startswith("dropped/")
            )
            raise RolloutError(
                f"step {step} kept {num_kept} of {wanted} groups after {group} draws ({dropped}); "
                "look at rollout.filters and at the rewards of the last steps"
            )
        return group, task_id

    async def _group(
        self, step: int, group: int, task_id: str, limits: Limits, version: int
    ) -> list[Sample]:
        async with _tasks() as running:
            for index in range(self._config.rollout.samples_per_prompt):
                wanted = _Wanted(step, group, index, task_id, (step, group, index))
                running.add(asyncio.create_task(self._obtain(wanted, limits, version)))
            samples = sorted(await asyncio.gather(*running), key=lambda s: s.index)
        rollout, clip = self._config.rollout, self._config.clip
        if clip.overlong is Overlong.penalty:
            for sample in samples:
                sample.penalty = overlong_penalty(
                    len(sample.tokens),
                    rollout.max_session_tokens,
                    clip.overlong_buffer,
                    clip.overlong_factor,
                )
        rewards = [s.reward + s.penalty for s in samples]
        values = advantages(rewards, clip.advantage, clip.std_normalise)
        for sample, value in zip(samples, values, strict=True):
            sample.advantage = float(value)
        return samples

    def _keeps(self, group: Sequence[Sample]) -> bool:
        """Whether the batch takes the group. Raises RolloutError when nothing lets it decide."""
        refused = filters.dropped_by(group, self._filters)
        lost = [s for s in group if not has_verdict(s.end_reason)]
        if refused is None and lost:
            raise RolloutError(
                f"sample {lost[0].sample_id} of task {lost[0].task_id} got no verdict in "
                f"{MAX_ATTEMPTS} attempts: {_why(lost)}; check_no_aborted in rollout.filters would "
                "drop its group"
            )
        if refused is not None:
            log.info("group %d (%s) dropped by %s", group[0].group, group[0].task_id, refused)
            self._stats[f"dropped/{refused}"] += 1
            self._stats["wasted_tokens"] += sum(
                s.num_generated for s in group if has_verdict(s.end_reason)
            )
            self._progress.samples_total += len(group)
        return refused is None

    async def _obtain(self, wanted: _Wanted, limits: Limits, version: int) -> Sample:
        """Tries until a sample has a verdict; the last one without, when all attempts fail."""
        for attempt in range(MAX_ATTEMPTS):
            if attempt:
                await asyncio.sleep(2 ** (attempt - 1))
            sample = await self._try(wanted, limits, version, attempt)
            self._progress.generated_tokens += sample.num_generated
            if has_verdict(sample.end_reason):
                self._progress.samples_done += 1
                self._progress.reward_sum += sample.reward
                return sample
            self._stats[f"replaced/{sample.end_reason}"] += 1
            self._stats["wasted_tokens"] += sample.num_generated
            log.warning(
                "sample %s of %s lost (%s), attempt %d: %s",
                sample.sample_id, sample.task_id, sample.end_reason, attempt + 1, sample.error,
            )  # fmt: skip
        return sample

    async def _try(self, wanted: _Wanted, limits: Limits, version: int, attempt: int) -> Sample:
        # The first retry draws the same random numbers, so a passing fault leaves no trace in the
        # batch; later ones do not, in case those very tokens bring the sandbox down.
        retry = max(0, attempt - 1)

        def seed(turn: int) -> int:
            return schedule.sampling_seed(self._config.seed, *wanted.place, turn, retry)

        number = wanted.group * self._config.rollout.samples_per_prompt + wanted.index + attempt
        async with self._slots:
            await self._resources.weights_at(version)
            engine = await self._resources.engine(number)
            episode = Episode(
                step=wanted.step,
                group=wanted.group,
                index=wanted.index,
                task_id=wanted.task_id,
                seed=seed,
                rid="-".join(map(str, (self._life, wanted.step, *wanted.place, attempt))),
                version=version,
            )
            self._progress.in_flight += 1
            try:
                return await play(
                    episode,
                    self._config.rollout.system_prompt,
                    limits,
                    self._chat,
                    engine,
                    self._resources.open_sandbox,
                )
            finally:
                self._progress.in_flight -= 1

    @asynccontextmanager
    async def _measured(self) -> AsyncIterator[dict[str, float]]:
        """Collects the costs of what runs inside."""
        self._stats.clear()
        began = perf_counter()
        stats: dict[str, float] = {}
        yield stats
        stats |= {**self._stats, "wall_s": perf_counter() - began}


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


def _why(samples: Sequence[Sample]) -> str:
    last = samples[-1]
    return f"{last.end_reason}, {last.error}"
