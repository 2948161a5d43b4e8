"""Does a positive series grow exponentially, and since when?"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WINDOW = 12
"""Steps over which growth is fitted."""
BASELINE = 60
"""Most steps before the window that growth is measured against."""
LEAST_WINDOW = 4
"""Steps after `min_steps` without which nothing is said."""
_CONFIDENT = 3.0
"""Standard errors by which the slope must be above 0. Three and not two: it is asked every step."""
_RISE = 2.0
"""How much above the baseline's median the level must be, and above all of it but outliers."""
_OUTLIERS = 2
"""Most values of the baseline, and at most a tenth of it, that may be above the level: an outlier
must not hide growth."""
_LEAST_NOISE = 0.05
"""Of a logarithm: a baseline that is flat by chance makes no noise significant."""


@dataclass(frozen=True)
class Growth:
    """A rise that noise does not explain."""

    baseline: float
    """Median before the window."""
    level: float
    """Median of the last three steps."""
    doubling: float
    """Steps in which it doubles, and its two-sided 95 % interval: from, to (inf: none)."""
    doubling_from: float
    doubling_to: float
    since: int
    """First step after which every value is above the baseline's median."""

    def __str__(self) -> str:
        """As in: from 0.021 to 0.058, doubling every 5.3 steps (95 % interval 4.4 to 6.9)."""
        return (
            f"from {self.baseline:.3g} to {self.level:.3g}, doubling every {self.doubling:.1f} "
            f"steps (95 % interval {self.doubling_from:.1f} to {self.doubling_to:.1f})"
        )


def growth(series: Mapping[int, float], min_steps: int, rise: float = _RISE) -> Growth | None:
    """Growth at the end of a series, by step; None where there is none to tell.

    The logarithm's least-squares slope over the last WINDOW steps is divided by its standard
    error, for which the noise is the larger of the window's and the baseline's around their own
    lines (of the baseline: 1.4826 times the median absolute residual): a window that is smooth by
    chance proves nothing. The level must also have left the baseline, so that a drift within the
    usual range is none.
    `min_steps`: steps before the window without which nothing is said. `rise`: how much above the
    baseline's median the level must be.
    """
    found = [(step, math.log(v)) for step, v in sorted(series.items()) if 0 < v < math.inf]
    if len(found) < min_steps + LEAST_WINDOW:
        return None
    steps = np.array([step for step, _ in found], np.float64)
    logs = np.array([value for _, value in found])
    end = max(min_steps, len(logs) - WINDOW)
    baseline, window = logs[max(0, end - BASELINE) : end], logs[-WINDOW:]
    usual = float(np.median(baseline))
    level = float(np.median(window[-3:]))
    highest = float(np.sort(baseline)[-1 - min(_OUTLIERS, len(baseline) // 10)])
    if level - usual < math.log(rise) or level < highest:
        return None
    x = steps[-WINDOW:] - steps[-WINDOW:].mean()
    slope, residuals = _line(x, window)
    _, around = _line(steps[max(0, end - BASELINE) : end], baseline)
    noise = max(
        1.4826 * float(np.median(np.abs(around))),
        math.sqrt(float(residuals @ residuals) / (len(window) - 2)),
        _LEAST_NOISE,
    )
    error = noise / math.sqrt(float(x @ x))
    if slope < _CONFIDENT * error:
        return None
    above = [index for index, value in enumerate(logs) if value <= usual]
    return Growth(
        baseline=math.exp(usual),
        level=math.exp(level),
        doubling=math.log(2) / slope,
        doubling_from=math.log(2) / (slope + 1.96 * error),
        doubling_to=math.log(2) / (slope - 1.96 * error),
        since=int(steps[min(above[-1] + 1, len(steps) - 1)]),
    )


def _line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """Slope and residuals of the least-squares line."""
    centred = x - x.mean()
    slope = float(centred @ y / (centred @ centred))
    return slope, y - y.mean() - slope * centred
