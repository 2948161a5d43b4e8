"""Means with honest intervals over tasks.

The samples of one task are alike, so the task is the unit: every interval here is over tasks, and
more samples a task only make each task's own mean better. All are two-sided 95 % intervals.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

CONFIDENCE = 0.95

Rewards = Mapping[str, Sequence[float]]
"""Task id -> the rewards of its samples."""


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95 % interval; low and high are NaN where too few tasks tell nothing."""

    mean: float
    low: float
    high: float
    num_tasks: int

    def __str__(self) -> str:
        return format(self)

    def __format__(self, sign: str) -> str:
        """0.412 [0.301, 0.533]; with the format "+" every number shows its sign."""
        if math.isnan(self.low):
            return f"{self.mean:{sign}.3f} (no interval: {self.num_tasks} task)"
        return f"{self.mean:{sign}.3f} [{self.low:{sign}.3f}, {self.high:{sign}.3f}]"


def finite(value: Any) -> float | None:
    """`value`, or None where it is no finite number."""
    with suppress(OverflowError):  # an integer beyond all floats
        if isinstance(value, int | float) and math.isfinite(value):
            return value
    return None


def or_nan(value: float | None) -> float:
    """`value`, or NaN for None: a null in a file."""
    return math.nan if value is None else value


def finite_mean(values: Iterable[Any]) -> float | None:
    """The mean of those that are finite numbers; None where none is."""
    found = [value for value in values if finite(value) is not None]
    return sum(found) / len(found) if found else None


def t_quantile(probability: float, df: int) -> float:
    """Quantile of Student's t with `df` >= 1 degrees of freedom, `probability` in [0.5, 1).

    Bisection on the exact distribution function for integer df (Abramowitz & Stegun 26.7.3-4).
    """
    low, high = 0.0, 1.0
    while _t_cdf(high, df) < probability:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_cdf(middle, df) < probability else (low, middle)
    return (low + high) / 2


def _t_cdf(t: float, df: int) -> float:
    """P(T <= t) for t >= 0 and integer df."""
    theta = math.atan(t / math.sqrt(df))
    cosine, sine = math.cos(theta), math.sin(theta)
    total = term = cosine if df % 2 else 1.0
    for k in range(3 if df % 2 else 2, df, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    if df % 2 == 0:
        return 0.5 + sine * total / 2
    return 0.5 + (theta + (sine * total if df > 1 else 0.0)) / math.pi


def task_means(rewards: Rewards) -> dict[str, float]:
    """Mean reward of each task that has samples."""
    return {task: sum(values) / len(values) for task, values in rewards.items() if values}


def mean_reward(rewards: Rewards) -> float:
    """Mean over tasks that have samples, one at least, every task weighing the same."""
    means = task_means(rewards).values()
    return sum(means) / len(means)


def mean_interval(rewards: Rewards) -> Interval | None:
    """Mean reward over tasks, every task weighing the same; None without samples.

    Rewards within [0, 1]: Wilson's score interval at the effective sample size of clustered data,
    n = m (1 - m) / SE^2 with SE = sd(task means) / sqrt(K), and t(K-1) in the place of z; where
    all tasks agree on 0 or on 1, n = K. It stays inside [0, 1] and never has zero width
    (Wilson 1927; Korn & Graubard 1998 for the effective size).
    Rewards outside [0, 1]: m +- t(K-1) SE.
    """
    means = list(task_means(rewards).values())
    count = len(means)
    if not count:
        return None
    mean = sum(means) / count
    if count == 1:
        return Interval(mean, math.nan, math.nan, 1)
    t = t_quantile((1 + CONFIDENCE) / 2, count - 1)
    variance = sum((value - mean) ** 2 for value in means) / (count - 1) / count
    if not all(0 <= value <= 1 for value in means):
        half = t * math.sqrt(variance)
        return Interval(mean, mean - half, mean + half, count)
    spread = mean * (1 - mean)
    if not spread:
        effective = float(count)
    elif variance:
        effective = spread / variance
    else:  # every task has the same mean: the tasks tell of no spread, their samples do
        effective = float(sum(len(values) for values in rewards.values()))
    shift = t * t / effective
    centre = (mean + shift / 2) / (1 + shift)
    half = t / (1 + shift) * math.sqrt(spread / effective + shift / (4 * effective))
    return Interval(mean, max(0.0, centre - half), min(1.0, centre + half), count)


def interval_over_runs(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Mean of one number a run, for runs that differ in their seed alone; None without any.

    m +- t(n-1) s / sqrt(n), Student's. A single run has no interval, nor have runs that came to one
    number: means over few samples tie by chance, and no spread seen is not none there.
    """
    count = len(values)
    if not count:
        return None
    mean = sum(values) / count
    if all(math.isclose(value, mean, rel_tol=1e-9, abs_tol=1e-12) for value in values):
        return Interval(mean, math.nan, math.nan, count)
    variance = sum((value - mean) ** 2 for value in values) / (count - 1)
    half = t_quantile((1 + confidence) / 2, count - 1) * math.sqrt(variance / count)
    return Interval(mean, mean - half, mean + half, count)


@dataclass(frozen=True)
class Change:
    """Reward after minus before, over the tasks seen both times."""

    interval: Interval
    up: int
    """Tasks whose mean rose."""
    down: int
    """Tasks whose mean fell; with `up` the churn that a flat mean can hide."""
    same: int

    @property
    def verdict(self) -> str:
        """rose, fell, or unclear when the interval holds 0 or there is none."""
        if self.interval.low > 0:
            return "rose"
        if self.interval.high < 0:
            return "fell"
        return "unclear"


def paired_change(before: Rewards, after: Rewards) -> Change | None:
    """The change of each task that is in both, averaged; None when there is none.

    Adjusted Wald interval for matched pairs (Agresti & Min 2005): one half of a task with change
    +1, one half with -1 and one with 0 are added to the K changes d, so that K tasks without any
    change do not claim certainty:
        m' = sum d / (K + 2),  v' = (sum d^2 + 1) / (K + 2) - m'^2,  m' +- t(K-1) sqrt(v' / (K + 2))
    The mean reported is that of the K changes.
    """
    first, last = task_means(before), task_means(after)
    changes = [last[task] - first[task] for task in first if task in last]
    count = len(changes)
    if not count:
        return None
    mean = sum(changes) / count
    low = high = math.nan
    if count > 1:
        padded = count + 2
        centre = sum(changes) / padded
        variance = (sum(d * d for d in changes) + 1) / padded - centre**2
        half = t_quantile((1 + CONFIDENCE) / 2, count - 1) * math.sqrt(variance / padded)
        low, high = centre - half, centre + half
    up, down = sum(d > 0 for d in changes), sum(d < 0 for d in changes)
    return Change(Interval(mean, low, high, count), up, down, count - up - down)


def sign_test(up: int, down: int) -> float:
    """Exact two-sided p of `up` against `down` when either is as likely; ties are left out.

    P = min(1, 2 sum over i <= min(up, down) of C(n, i) / 2^n), n = up + down; 1 without any change.
    """
    total = up + down
    tail = sum(math.comb(total, i) for i in range(min(up, down) + 1))
    return min(1.0, 2 * tail / 2**total)


def moving_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean of each value and up to `window` - 1 before it."""
    return [
        sum(values[max(0, i + 1 - window) : i + 1]) / (i + 1 - max(0, i + 1 - window))
        for i in range(len(values))
    ]
