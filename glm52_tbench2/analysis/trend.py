"""Whether a positive metric grows, by how much a step, and how sure that is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from .stats import CONFIDENCE, t_quantile

LEAST_POINTS = 6
"""With fewer steps no trend is told."""


@dataclass(frozen=True)
class Trend:
    """Growth of the logarithm a step, with its two-sided 95 % interval."""

    slope: float
    low: float
    high: float
    num_points: int

    @property
    def verdict(self) -> str:
        """rising, falling, or no trend when the interval holds 0."""
        if self.low > 0:
            return "rising"
        if self.high < 0:
            return "falling"
        return "no trend"

    @property
    def doubling(self) -> float:
        """Steps in which it doubles (halves, when falling)."""
        return math.log(2) / abs(self.slope) if self.slope else math.inf


def log_trend(points: Mapping[int, float]) -> Trend | None:
    """Least squares of log(value) on the step; None with too few positive values.

    Neighbouring steps resemble each other, which makes a plain interval too narrow. So the number
    of steps is shortened by the residuals' correlation r with the step before, if positive, after
    what a fitted line takes from it is put back, (1 + 4 r) / n:
        n' = n (1 - r) / (1 + r), at least 3;   slope +- t(n' - 2) sqrt(S / (n' - 2) / Sxx)
    with S the sum of squares of the residuals, Sxx that of the steps (Santer et al. 2000).
    """
    found = [(step, math.log(v)) for step, v in sorted(points.items()) if 0 < v < math.inf]
    count = len(found)
    if count < LEAST_POINTS:
        return None
    mean_x = sum(x for x, _ in found) / count
    mean_y = sum(y for _, y in found) / count
    spread = sum((x - mean_x) ** 2 for x, _ in found)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in found) / spread
    residuals = [y - mean_y - slope * (x - mean_x) for x, y in found]
    squares = sum(r * r for r in residuals)
    if squares < 1e-20 * count:  # an exact exponential, up to rounding
        return Trend(slope, slope, slope, count)
    lagged = sum(a * b for a, b in pairwise(residuals)) / squares
    correlation = min(max(lagged + (1 + 4 * lagged) / count, 0.0), 0.99)
    effective = max(3.0, count * (1 - correlation) / (1 + correlation))
    freedom = effective - 2
    half = t_quantile((1 + CONFIDENCE) / 2, max(1, math.floor(freedom))) * math.sqrt(
        squares / freedom / spread
    )
    return Trend(slope, slope - half, slope + half, count)
