"""Obtains one sample: a slot, an engine, a sandbox, and another try when infrastructure fails."""

import asyncio
import logging
import uuid
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

from ..config.schema import RunConfig
from . import schedule
from .batch import Sample
from .chat import ChatLayout
from .episode import Engine, Episode, Limits, Sandbox, play
from .outcome import has_verdict
from .progress import Progress
from .stats import count_waste

MAX_ATTEMPTS = 6
"""Times one sample is tried; waiting 1, 2, 4, 8 and 16 s in between outlasts a server's restart."""

log = logging.getLogger(__name__)


class RolloutError(Exception):
    """Generation cannot go on; the sentence says why. Not the user's input, so worth a retry."""


class Resources(Protocol):
    """Where episodes are played; both calls wait for a server that is being restarted."""

    async def engine(self, number: int) -> Engine:
        """The engine for sample `number`, the same for all turns, whose prefix it has cached."""

    async def open_sandbox(self) -> Sandbox:
        """A fresh session with the environment."""

    async def weights_at(self, version: int) -> None:
        """Returns once every engine serves exactly `version`."""


@dataclass(frozen=True)
class Wanted:
    """One sample to obtain."""

    step: int
    """See :class:`~glm52_tbench2.rollout.batch.Sample`; 0: not known yet."""
    group: int
    index: int
    task_id: str
    place: tuple[Any, ...]
    """What its random numbers depend on, besides the run's seed and the turn."""
    version: int
    """Oldest weight version its tokens may come from."""
    only_version: bool = True
    """Whether they may come from no later one either."""

    phase: str = "generate"
    """The phase of the driver's progress that it counts in: generate or eval."""


class Player:
    """Plays episodes, at most ``rollout.max_concurrent_samples`` at a time.

    A slot is freed by each sample's end, and while one waits for its next attempt.
    """

    def __init__(
        self, config: RunConfig, chat: ChatLayout, resources: Resources, progress: Progress
    ) -> None:
        self._config, self._chat, self._resources = config, chat, resources
        self.progress = progress
        self.num_slots = min(config.rollout.max_concurrent_samples, config.sandbox.max_concurrent)
        self._slots = asyncio.Semaphore(self.num_slots)
        # A restarted driver must not reuse the request ids of the one before.
        self._life = uuid.uuid4().hex[:8]
        self.stats: dict[str, Counter[str]] = {"generate": Counter(), "eval": Counter()}
        """Phase -> ``replaced/REASON``: samples; ``wasted/REASON``, ``wasted_tokens``: tokens."""
        self._busy_s, self._busy_since = 0.0, perf_counter()
        self._ended: deque[tuple[float, int]] = deque()
        """When samples to train on ended, and their tokens; first, when one began."""

    async def obtain(
        self, wanted: Wanted, limits: Limits, lost: Callable[[Sample], None] | None = None
    ) -> Sample:
        """Tries until a sample has a verdict; the last one without, when all attempts fail.

        `lost` is told of each one without.
        """
        if wanted.phase == "generate" and not self._ended:
            self._ended.append((perf_counter(), 0))
        for attempt in range(MAX_ATTEMPTS):
            if attempt:
                await asyncio.sleep(2 ** (attempt - 1))
            sample = await self._try(wanted, limits, attempt)
            if wanted.phase == self.progress.phase:
                self.progress.generated_tokens += sample.num_generated
            if wanted.phase == "generate":
                tokens = sample.num_generated + sample.discarded_tokens
                self._ended.append((perf_counter(), tokens))
            if sample.discarded_tokens:
                self.waste(wanted.phase, sample.end_reason, sample.discarded_tokens)
            if has_verdict(sample.end_reason):
                if wanted.phase == self.progress.phase:
                    self.progress.samples_done += 1
                    self.progress.reward_sum += sample.reward
                return sample
            self.stats[wanted.phase][f"replaced/{sample.end_reason}"] += 1
            self.waste(wanted.phase, sample.end_reason, sample.num_generated)
            if lost is not None:
                lost(sample)
            log.warning(
                "sample %s of %s lost (%s), attempt %d: %s",
                sample.sample_id, sample.task_id, sample.end_reason, attempt + 1, sample.error,
            )  # fmt: skip
        return sample

    def waste(self, phase: str, cause: str, tokens: int) -> None:
        """Counts tokens that no file of samples holds."""
        count_waste(self.stats[phase], cause, tokens)

    def cost(self, phase: str, wall_s: float) -> dict[str, float]:
        """What was counted in a phase, and its wall clock; counting starts anew."""
        found = {**self.stats[phase], "wall_s": wall_s}
        self.stats[phase].clear()
        return found

    def busy_s(self) -> float:
        """Seconds that slots have been taken, all together, since the last call."""
        self._count_busy()
        busy_s, self._busy_s = self._busy_s, 0.0
        return busy_s

    def tokens_per_s(self, least_s: float) -> float:
        """Tokens of samples to train on that ended in the last `least_s` seconds, a second."""
        if not self._ended:
            return 0.0
        now = perf_counter()
        while len(self._ended) > 1 and now - self._ended[1][0] > least_s:
            self._ended.popleft()
        since, _ = self._ended[0]
        return sum(tokens for _, tokens in list(self._ended)[1:]) / max(now - since, 1e-9)

    def _count_busy(self, change: int = 0) -> None:
        now = perf_counter()
        self._busy_s += self.progress.in_flight * (now - self._busy_since)
        self._busy_since = now
        self.progress.in_flight += change

    async def _try(self, wanted: Wanted, limits: Limits, attempt: int) -> Sample:
        # The first retry draws the same random numbers, so a passing fault leaves no trace in the
        # batch; later ones do not, in case those very tokens bring the sandbox down.
        retry = max(0, attempt - 1)

        def seed(turn: int) -> int:
            return schedule.sampling_seed(self._config.seed, *wanted.place, turn, retry)

        number = wanted.group * self._config.rollout.samples_per_prompt + wanted.index + attempt
        async with self._slots:
            if wanted.only_version:
                await self._resources.weights_at(wanted.version)
            engine = await self._resources.engine(number)
            episode = Episode(
                step=wanted.step,
                group=wanted.group,
                index=wanted.index,
                task_id=wanted.task_id,
                seed=seed,
                rid="-".join(map(str, (self._life, wanted.step, *wanted.place, attempt))),
                oldest_version=wanted.version,
                newest_version=wanted.version if wanted.only_version else None,
            )
            self._count_busy(+1)
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
                self._count_busy(-1)
