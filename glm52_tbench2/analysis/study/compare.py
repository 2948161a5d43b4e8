"""Arms against the base: differences paired by seed, at equal steps and at equal visits a task.

Each interval is Student's t over seeds. With many arms some 95 % intervals leave out 0 by chance;
a verdict is therefore taken from an interval at 1 - 0.05 / (arms of the plan), Bonferroni's: of all
arms from the first run on, so that no verdict is lost to a later arm.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..stats import CONFIDENCE, Interval, interval_over_runs
from .measures import Measures
from .plan import BASE, Claim, Plan

LAST = 10
"""Steps that a level is the mean of."""
SAME = 1.5
"""Two arms whose factor surely lies within 1 / SAME and SAME count as the same."""
ONSET = 0.3
"""A drift above this is a burst."""
LEAST_TURNS = 5
"""Capped turns below which a window of the sensitivity has no say."""
CLOCKS = ("steps", "visits")

Runs = Mapping[str, Mapping[int, Measures]]
"""Arm -> seed -> what its run came to."""


def _level(name: str) -> Callable[[Measures, int], float | None]:
    return lambda m, upto: float(np.mean(getattr(m, name)[:upto][-LAST:]))


@dataclass(frozen=True)
class Outcome:
    key: str
    title: str
    value: Callable[[Measures, int], float | None]
    """Of a run's first steps, as many as given; None where nothing was measured."""
    factor: bool = False
    """Compared as a ratio, by its logarithm."""
    higher_is_good: bool = False

    def difference(self, arm: float | None, base: float | None) -> float | None:
        if arm is None or base is None:
            return None
        if not self.factor:
            return arm - base
        return math.log(arm / base) if arm > 0 and base > 0 else None

    def shown(self, interval: Interval | None) -> str:
        """× 0.52 [0.31, 0.88] or +0.050 [-0.010, +0.110]."""
        if interval is None:
            return "–"
        ends = [interval.mean, interval.low, interval.high]
        mean, low, high = (_ratio(math.exp(v)) if self.factor else f"{v:+.3f}" for v in ends)
        return ("× " if self.factor else "") + (
            f"{mean} (no interval)" if math.isnan(interval.low) else f"{mean} [{low}, {high}]"
        )


def _ratio(value: float) -> str:
    """Two decimals, or one digit of what these would round to hardly anything."""
    return f"{value:.2f}" if value >= 0.1 else f"{value:.1g}"


OUTCOMES = (
    Outcome("drift", "drift on capped turns", Measures.peak, factor=True),
    Outcome("held_out", "held-out reward", Measures.held_out_mean, higher_is_good=True),
    Outcome("reward", "training reward", _level("reward"), higher_is_good=True),
    Outcome("truncated", "truncated share", _level("truncated")),
    Outcome("kl", "train_rollout_kl", _level("kl"), factor=True),
)
PRIMARY = OUTCOMES[0]
SENSITIVITY = Outcome(
    "drift_many", PRIMARY.title, partial(Measures.peak, least=LEAST_TURNS), factor=True
)
"""The primary outcome without peaks that rest on few turns; thought of after the first results."""


@dataclass(frozen=True)
class Effect:
    """One arm against the base in one outcome, at equal steps or visits."""

    arm: str
    outcome: Outcome
    by_seed: dict[int, float]
    interval: Interval | None
    """95 %."""
    adjusted: Interval | None
    """The same at the level that reckons with all arms of the plan."""

    @property
    def verdict(self) -> str:
        """higher, lower, same (within SAME, factors alone), or "can't be told"."""
        if self.adjusted is not None and self.adjusted.low > 0:
            return "higher"
        if self.adjusted is not None and self.adjusted.high < 0:
            return "lower"
        close = math.log(SAME)
        near = self.interval if self.outcome.factor else None
        if near is not None and -close < near.low and near.high < close:
            return "same"
        return "can't be told"

    @property
    def tone(self) -> str:
        """good or bad, or "" where the verdict is neither higher nor lower."""
        good, bad = ("higher", "lower") if self.outcome.higher_is_good else ("lower", "higher")
        return {good: "good", bad: "bad"}.get(self.verdict, "")

    @property
    def shown(self) -> str:
        return self.outcome.shown(self.interval)


def horizon(plan: Plan, run: Measures, clock: str) -> int | None:
    """Steps of a run that are compared; None: it has not come so far."""
    if clock == "steps":
        return plan.steps if run.steps >= plan.steps else None
    # Every task of the base is trained each step.
    reached = (n for n, v in enumerate(run.visits, 1) if v >= plan.steps - 1e-6)
    # A task that comes twice in a step, where one pass over the set ends and the next begins, is
    # visited once: a run may end a little short of the visits that its steps were counted for.
    near = run.steps if run.visits and run.visits[-1] > plan.steps - 0.5 else None
    return next(reached, near)


def effects(plan: Plan, runs: Runs, clock: str, outcome: Outcome) -> dict[str, Effect]:
    """Arm -> its effect, of all arms but the base that share a seed with it."""
    found: dict[str, dict[int, float]] = {}
    for arm in plan.arms:
        pairs = {
            seed: value
            for seed in plan.seeds
            if arm != BASE and (value := _pair(plan, runs, clock, outcome, arm, seed)) is not None
        }
        if pairs:
            found[arm] = pairs
    level = 1 - (1 - CONFIDENCE) / plan.num_compared
    return {
        arm: Effect(
            arm,
            outcome,
            pairs,
            interval_over_runs(list(pairs.values())),
            interval_over_runs(list(pairs.values()), level),
        )
        for arm, pairs in found.items()
    }


def _pair(
    plan: Plan, runs: Runs, clock: str, outcome: Outcome, arm: str, seed: int
) -> float | None:
    both = compared(plan, runs, clock, arm, seed)
    if both is None:
        return None
    run, base, upto = both
    return outcome.difference(outcome.value(run, upto), outcome.value(base, plan.steps))


def compared(
    plan: Plan, runs: Runs, clock: str, arm: str, seed: int
) -> tuple[Measures, Measures, int] | None:
    """An arm's run, the base's of that seed, and the steps of the first that are compared; None
    where one of them is not there or has not come so far."""
    run, base = runs.get(arm, {}).get(seed), runs.get(BASE, {}).get(seed)
    if run is None or base is None or base.steps < plan.steps:
        return None
    upto = horizon(plan, run, clock)
    return None if upto is None else (run, base, upto)


def notes(plan: Plan, runs: Runs, clock: str) -> dict[str, list[str]]:
    """Arm -> what a reader of its effects must know: pairs made by two versions of code or
    packages, and pairs in which the arm's knob never acted."""
    found: dict[str, list[str]] = defaultdict(list)
    for arm in [name for name in plan.arms if name != BASE]:
        pairs = [one for seed in plan.seeds if (one := compared(plan, runs, clock, arm, seed))]
        if other := sum(_made_by(run) != _made_by(base) for run, base, _ in pairs):
            found[arm].append(f"{other} of {len(pairs)} pairs of other code")
        if alike := sum(_trained_alike(*pair) for pair in pairs):
            found[arm].append(f"in {alike} of {len(pairs)} pairs the base's run, step for step")
    return found


def _trained_alike(run: Measures, base: Measures, upto: int) -> bool:
    return all(
        getattr(run, series)[:upto] == getattr(base, series)[:upto] for series in ("kl", "reward")
    )


def _made_by(run: Measures) -> tuple[object, object]:
    return run.identity.get("code"), run.identity.get("packages")


def matters_most(plan: Plan, found: Mapping[str, Effect]) -> str:
    """Which single change moves the primary outcome most, in a sentence; or that none can be told.

    `found`: at equal steps. A change is named only if its adjusted interval leaves out no effect;
    it alone, only if its paired difference in size to each other change leaves out 0 as well.
    """
    single = [e for arm, e in found.items() if len(plan.arms[arm].overrides) == 1]
    single.sort(key=lambda e: -abs(e.interval.mean) if e.interval else 0.0)
    clear = [e for e in single if e.verdict in ("higher", "lower")]
    if not clear:
        return (
            "Can't be told: of no single change does the interval, widened for "
            f"{plan.num_compared} comparisons, leave out that it has no effect."
        )
    top, others = clear[0], [e for e in single if e is not clear[0]]
    rivals = [plan.arms[e.arm].title for e in others if not _surely_larger(top, e)]
    told = f"{plan.arms[top.arm].title} ({top.shown} of the base's drift at equal steps)"
    if not rivals:
        return f"The single change that matters most is {told}."
    return (
        f"{told[0].upper()}{told[1:]} has the largest clear effect; that it matters more than "
        f"{', '.join(rivals)} can't be told."
    )


def _surely_larger(one: Effect, other: Effect) -> bool:
    """Whether the size of an effect is above that of another, over the seeds they share."""
    signs = [math.copysign(1.0, e.interval.mean) for e in (one, other) if e.interval]
    seeds = sorted(set(one.by_seed) & set(other.by_seed))
    gap = interval_over_runs(
        [signs[0] * one.by_seed[s] - signs[1] * other.by_seed[s] for s in seeds]
    )
    return gap is not None and gap.low > 0


def judge(claim: Claim, effect: Effect | None) -> str:
    """reproduced, contradicted and by what, or "can't be told"."""
    if effect is None or effect.verdict == "can't be told":
        return "can't be told"
    if effect.verdict == claim.expect:
        return "reproduced"
    return f"contradicted: {effect.verdict}"


def reached(plan: Plan, runs: Sequence[Measures], clock: str) -> list[tuple[Measures, int]]:
    """The runs that have come as far as is compared, each with the steps that are."""
    known = ((run, horizon(plan, run, clock)) for run in runs)
    return [(run, upto) for run, upto in known if upto is not None]


def onsets(plan: Plan, runs: Sequence[Measures], clock: str) -> str:
    """At how many visits a task each run's first burst came, as text; of runs that have come as far
    as is compared, in the steps that are. "" where no run has."""
    return _at_visits([run.onset(ONSET, upto) for run, upto in reached(plan, runs, clock)])


def losses(plan: Plan, runs: Sequence[Measures], clock: str) -> str:
    """At how many visits a task each run lost its training reward, as text; as :func:`onsets`."""
    return _at_visits([run.lost_at(LAST, upto) for run, upto in reached(plan, runs, clock)])


def _at_visits(found: Sequence[float | None]) -> str:
    hit = [f"{visits:.0f}" for visits in found if visits is not None]
    if not found:
        return ""
    if not hit:
        return f"none of {len(found)}"
    return f"{len(hit)} of {len(found)}, at {', '.join(hit)} visits"
