"""Exponential growth: told in time, and not out of noise. Shapes and ranges: the published runs."""

import numpy as np
import pytest

from glm52_tbench2.analysis.sentinel.growth import growth

LOW, HIGH = 0.022, 0.054
"""train_rollout_kl of the published healthy run."""
RATE = np.log(57) / 30
"""Growth a step of the published diverging runs."""


def first_alarm(values: np.ndarray, min_steps: int = 10) -> int | None:
    for count in range(1, len(values) + 1):
        if growth(dict(enumerate(values[:count].tolist())), min_steps) is not None:
            return count - 1
    return None


def diverging(noise: float, seed: int, flat: int = 20) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rise = np.concatenate([np.zeros(flat), RATE * np.arange(1, 31)])
    return 0.02 * np.exp(rise + rng.normal(0, noise, len(rise)))


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.1])
def test_it_alarms_before_the_value_has_tripled(noise: float) -> None:
    tripled = 20 + np.log(3) / RATE
    for seed in range(10):
        alarm = first_alarm(diverging(noise, seed))
        assert alarm is not None and 20 <= alarm < tripled


@pytest.mark.parametrize("flat", [15, 20, 60])
def test_an_outlier_before_it_delays_no_alarm(flat: int) -> None:
    for seed in range(10):
        series = diverging(0.1, seed, flat)
        series[flat // 2] *= 10
        alarm = first_alarm(series)
        assert alarm is not None and alarm < flat + np.log(3) / RATE


def test_healthy_noise_raises_no_alarm_in_10_000_steps() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        assert first_alarm(rng.uniform(LOW, HIGH, 100)) is None
        assert first_alarm(np.exp(rng.uniform(np.log(LOW), np.log(HIGH), 100))) is None


def test_nothing_is_said_of_a_short_series_a_flat_one_or_a_step() -> None:
    rising = {step: 0.02 * 1.5**step for step in range(13)}
    assert growth(rising, 10) is None
    assert growth(dict.fromkeys(range(50), 0.02), 10) is None
    assert growth({step: 0.02 if step < 30 else 0.03 for step in range(60)}, 10) is None


def test_the_rise_that_is_asked_for_can_be_larger() -> None:
    series = {step: 0.02 * 1.15 ** max(0, step - 20) for step in range(30)}  # the level: ×3.06
    assert growth(series, 10, 3.0) is not None
    assert growth(series, 10, 3.1) is None


def test_it_tells_the_doubling_and_since_when() -> None:
    series = {step: 0.02 * 2 ** max(0, (step - 20) / 5) for step in range(40)}
    found = growth(series, 10)
    assert found is not None
    assert found.doubling == pytest.approx(5)
    assert found.doubling_from < 5 < found.doubling_to
    assert found.since == 21
    assert (found.baseline, found.level) == pytest.approx((0.02, 0.02 * 2 ** (18 / 5)))


def test_zeros_and_infinities_are_passed_over() -> None:
    series = dict(enumerate(diverging(0.0, 0)))
    whole = growth(series, 10)
    assert growth({**series, 50: 0.0, 51: np.inf, 52: np.nan}, 10) == whole is not None
