"""The trend of a logarithm, against closed forms and simulated coverage."""

import math
import random

import pytest

from glm52_tbench2.analysis.stats import sign_test, t_quantile
from glm52_tbench2.analysis.trend import LEAST_POINTS, log_trend


def test_an_exponential_is_found_exactly() -> None:
    found = log_trend({step: 0.02 * 1.5 ** (step / 10) for step in range(1, 41)})
    assert found is not None
    assert found.slope == pytest.approx(math.log(1.5) / 10)
    assert found.doubling == pytest.approx(10 * math.log(2) / math.log(1.5))
    assert found.verdict == "rising"


def test_the_published_divergence_doubles_every_five_steps() -> None:
    found = log_trend({step: 0.02 * 57 ** (step / 30) for step in range(31)})
    assert found is not None and found.doubling == pytest.approx(5.143, abs=1e-3)


def test_a_falling_metric_falls_and_a_constant_one_has_no_trend() -> None:
    falling = log_trend({step: math.exp(-step) for step in range(10)})
    assert falling is not None and falling.verdict == "falling"
    flat = log_trend({step: 0.02 for step in range(10)})
    assert flat is not None and flat.verdict == "no trend" and flat.doubling == math.inf


def test_without_correlation_it_is_ordinary_least_squares() -> None:
    # Residuals +e, -e, -e, +e, ... correlate below 0 with the step before: n' = n.
    noise = [1, -1, -1, 1, -1, 1, 1, -1]
    logs = [0.1 * x + 0.01 * e for x, e in enumerate(noise)]
    found = log_trend({x: math.exp(y) for x, y in enumerate(logs)})
    n, mean_x, mean_y = 8, 3.5, sum(logs) / 8
    sxx = sum((x - mean_x) ** 2 for x in range(n))
    slope = sum((x - mean_x) * (y - mean_y) for x, y in enumerate(logs)) / sxx
    squares = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in enumerate(logs))
    half = t_quantile(0.975, n - 2) * math.sqrt(squares / (n - 2) / sxx)
    assert found is not None
    assert (found.slope, found.low, found.high) == pytest.approx(
        (slope, slope - half, slope + half)
    )


def test_correlated_noise_is_not_taken_for_a_trend() -> None:
    rng = random.Random(0)
    covered = 0
    for _ in range(400):
        value, points = 0.0, {}
        for step in range(100):
            value = 0.5 * value + rng.gauss(0, 0.2)
            points[step] = 0.03 * math.exp(value)
        found = log_trend(points)
        assert found is not None
        covered += found.low <= 0 <= found.high
    assert covered >= 0.91 * 400


def test_too_few_steps_tell_no_trend_and_zeros_are_left_out() -> None:
    assert log_trend({step: 1.0 for step in range(LEAST_POINTS - 1)}) is None
    assert log_trend({step: 0.0 for step in range(50)}) is None
    assert log_trend({}) is None


@pytest.mark.parametrize(
    ("up", "down", "p"),
    [(0, 0, 1.0), (1, 0, 1.0), (3, 3, 1.0), (5, 0, 2 / 32), (8, 2, 112 / 1024), (10, 1, 24 / 2048)],
)
def test_sign_test_agrees_with_the_binomial(up: int, down: int, p: float) -> None:
    assert sign_test(up, down) == pytest.approx(p)
    assert sign_test(down, up) == pytest.approx(p)
