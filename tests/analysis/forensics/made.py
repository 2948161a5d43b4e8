"""Runs made up step by step, for verdicts that hang on when something was and when it ended."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glm52_tbench2.analysis.forensics.examine import Examination, examine
from glm52_tbench2.analysis.forensics.source import About, Step
from glm52_tbench2.analysis.stats import Rewards
from glm52_tbench2.config.compose import compose

SAMPLES, CAP = 8, 100
LOOP = np.arange(CAP) % 7


@dataclass(frozen=True)
class Of:
    """What a step is made of; by default a calm one whose groups of 4 differ."""

    drift: float = 0.02
    """Mean |D| of turns."""
    rewards: tuple[float, ...] = (0, 1) * (SAMPLES // 2)
    truncated: int = 0
    """So many samples, the first."""
    entropy: float = 0.5
    loop: int = 0
    """So many samples, the first, end in LOOP, with A < 0."""
    loop_drift: float | None = None
    """Mean |D| of these; None: as of all."""
    scored: bool = True
    broken: float = 0.0
    """Share of tokens whose log-prob of the trainer is no number."""


@dataclass
class MadeUp:
    """A run of so many steps, each as `make` says."""

    num_steps: int
    make: Callable[[int], Of]
    evals: dict[int, Rewards] = field(default_factory=dict)
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    known: bool = True
    """Whether the run's config is known."""
    warnings: list[str] = field(default_factory=list)

    def about(self) -> About:
        words = ["experiment=job2350", "model.path=data/tiny", f"rollout.max_turn_tokens={CAP}"]
        config = compose(words) if self.known else None
        return About("made up", "a run", config, self.metrics, self.evals)

    def steps(self) -> list[int]:
        return list(range(1, self.num_steps + 1))

    def size(self) -> int:
        return 0

    def read(self, step: int, tokens_only: bool = False) -> Step:
        rng, of = np.random.default_rng(step), self.make(step)
        turns = [rng.integers(100, 100_000, CAP - 40 + place) for place in range(SAMPLES)]
        turns[: of.loop] = [LOOP] * of.loop
        levels = [of.drift] * SAMPLES
        if of.loop_drift is not None:
            levels[: of.loop] = [of.loop_drift] * of.loop
        sizes = [len(turn) for turn in turns]
        noise = rng.uniform(0.9, 1.1, sum(sizes)) * rng.choice([-1, 1], sum(sizes))
        rollout: NDArray[Any] = -rng.exponential(0.5, sum(sizes))
        rewards = np.asarray(of.rewards, float)
        advantages = rewards - rewards.reshape(-1, 4).mean(1).repeat(4)
        advantages[: of.loop] = -1.0
        scored = of.scored and not tokens_only
        trainer = rollout + noise * np.repeat(levels, sizes)
        trainer[: round(of.broken * len(trainer))] = np.nan
        return Step(
            step=step,
            sample_ids=[f"{step:06d}-{place // 4}-{place % 4}" for place in range(SAMPLES)],
            tasks=[f"task{place // 4}" for place in range(SAMPLES)],
            groups=[str(place // 4) for place in range(SAMPLES)],
            rewards=rewards,
            advantages=advantages,
            truncated=np.arange(SAMPLES) < of.truncated,
            offsets=np.append(0, np.cumsum(sizes)),
            tokens=np.concatenate(turns),
            mask=np.ones(sum(sizes), bool),
            rollout=rollout,
            trainer=trainer if scored else None,
            entropy=np.full(sum(sizes), of.entropy) if scored else None,
            versions=np.full(sum(sizes), step - 1),
            version=step - 1,
        )


def made_up(num_steps: int, make: Callable[[int], Of] = lambda step: Of(), **known: Any) -> MadeUp:
    return MadeUp(num_steps, make, **known)


def seen(
    num_steps: int, make: Callable[[int], Of] = lambda step: Of(), **known: Any
) -> Examination:
    """The examination of a made-up run."""
    return examine(made_up(num_steps, make, **known))
