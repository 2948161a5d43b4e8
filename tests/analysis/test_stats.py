"""Intervals against tables, simulated coverage and their edges."""

import math
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glm52_tbench2.analysis.stats import (
    mean_interval,
    moving_mean,
    paired_change,
    t_quantile,
)

# A loaded machine is slow, not wrong.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize(
    ("df", "expected"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (10, 2.2281), (19, 2.0930), (68, 1.9955)],
)
def test_t_quantile_agrees_with_the_printed_table(df: int, expected: float) -> None:
    assert t_quantile(0.975, df) == pytest.approx(expected, abs=5e-5)


def test_mean_interval_of_one_sample_a_task_is_wilsons() -> None:
    # 7 of 20: n_eff = p q / (p q / (K - 1)) = 19, t(19) = 2.0930.
    p, n, z = 0.35, 19.0, 2.0930241
    shift = z * z / n
    centre = (p + shift / 2) / (1 + shift)
    half = z / (1 + shift) * math.sqrt(p * (1 - p) / n + shift / (4 * n))
    found = mean_interval({str(i): [float(i < 7)] for i in range(20)})
    assert found is not None
    assert (found.mean, found.low, found.high) == pytest.approx((p, centre - half, centre + half))


def test_tasks_weigh_the_same_however_many_samples_they_have() -> None:
    found = mean_interval({"a": [1.0] * 9, "b": [0.0]})
    assert found is not None and found.mean == 0.5


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_unanimous_tasks_still_have_an_interval(reward: float) -> None:
    found = mean_interval({str(i): [reward] * 2 for i in range(20)})
    assert found is not None
    assert found.mean == reward
    assert 0.15 < found.high - found.low < 0.25


def test_one_task_has_no_interval_and_none_has_no_mean() -> None:
    one = mean_interval({"a": [1.0, 0.0]})
    assert one is not None and math.isnan(one.low) and one.mean == 0.5
    assert mean_interval({}) is None
    assert mean_interval({"a": []}) is None


def test_rewards_outside_the_unit_interval_get_a_t_interval() -> None:
    found = mean_interval({"a": [1.0], "b": [2.0], "c": [3.0]})
    assert found is not None
    assert found.high - found.mean == pytest.approx(4.3027 / math.sqrt(3), abs=1e-4)


def test_mean_interval_covers_the_truth_as_often_as_it_says() -> None:
    # Tasks differ in difficulty, two samples each: what one evaluation of 20 tasks sees.
    rng = random.Random(0)
    covered = 0
    for _ in range(1000):
        rewards = {}
        for task in range(20):
            p = rng.betavariate(1.0, 1.5)
            rewards[str(task)] = [float(rng.random() < p) for _ in range(2)]
        found = mean_interval(rewards)
        assert found is not None
        covered += found.low <= 0.4 <= found.high
    assert 930 <= covered <= 985


def test_paired_change_reports_the_churn_behind_a_flat_mean() -> None:
    before = {"a": [1.0], "b": [0.0], "c": [1.0, 0.0], "only before": [1.0]}
    after = {"a": [0.0], "b": [1.0], "c": [0.0, 1.0], "only after": [0.0]}
    change = paired_change(before, after)
    assert change is not None
    assert (change.up, change.down, change.same) == (1, 1, 1)
    assert change.interval.mean == 0.0
    assert change.interval.num_tasks == 3
    assert change.verdict == "unclear"


def test_a_clear_rise_and_a_clear_fall_are_told_apart_from_no_change() -> None:
    low = {str(i): [0.0, 0.0] for i in range(20)}
    high = {str(i): [1.0, 0.0] if i < 14 else [0.0, 0.0] for i in range(20)}
    rise, fall, none = paired_change(low, high), paired_change(high, low), paired_change(low, low)
    assert rise is not None and rise.verdict == "rose"
    assert fall is not None and fall.verdict == "fell"
    assert none is not None and none.verdict == "unclear"
    assert none.interval.low < 0 < none.interval.high


def test_paired_change_covers_the_truth_as_often_as_it_says() -> None:
    rng = random.Random(1)
    covered = 0
    for _ in range(1000):
        before, after = {}, {}
        for task in range(20):
            p = rng.betavariate(1.0, 1.5) * 0.8
            before[str(task)] = [float(rng.random() < p) for _ in range(2)]
            after[str(task)] = [float(rng.random() < p + 0.15) for _ in range(2)]
        change = paired_change(before, after)
        assert change is not None
        covered += change.interval.low <= 0.15 <= change.interval.high
    assert 930 <= covered <= 990


@UNTIMED
@given(st.dictionaries(st.text(max_size=3), st.lists(st.floats(0, 1), min_size=1), min_size=2))
def test_the_interval_holds_the_mean_and_stays_in_the_unit_interval(
    rewards: dict[str, list[float]],
) -> None:
    found = mean_interval(rewards)
    assert found is not None
    assert -1e-9 <= found.low <= found.mean + 1e-9
    assert found.mean - 1e-9 <= found.high <= 1 + 1e-9


def test_moving_mean_looks_back_only() -> None:
    assert moving_mean([1.0, 3.0, 5.0, 7.0], 2) == [1.0, 2.0, 4.0, 6.0]
