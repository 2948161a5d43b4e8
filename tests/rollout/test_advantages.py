import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm52_tbench2.config.schema import Advantage
from glm52_tbench2.rollout.advantages import advantages, overlong_penalty

rewards = st.lists(st.floats(0, 1, width=16), min_size=1, max_size=16)
binary = st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=16)
kinds = st.sampled_from(Advantage)


def test_one_failure_weighs_seven_times_more_in_a_group_that_mostly_solves():
    """G = 8 from reference: A = -2.47 in a 7/8 group, -0.35 in a 1/8 group."""
    rare = advantages([1] * 7 + [0], Advantage.grpo, True)
    common = advantages([1] + [0] * 7, Advantage.grpo, True)
    assert rare[-1] == pytest.approx(-2.4749, abs=1e-3)
    assert common[-1] == pytest.approx(-0.3536, abs=1e-3)


@pytest.mark.parametrize(
    ("kind", "std_normalise", "expected"),
    [
        # R = 1 1 0 0 0: mean 0.4, unbiased variance 1.2 / 4
        (Advantage.grpo, True, [0.6 / 0.3**0.5, -0.4 / 0.3**0.5]),
        (Advantage.grpo, False, [0.6, -0.4]),
        (Advantage.dr_grpo, True, [0.6, -0.4]),
        (Advantage.rloo, True, [1 - 1 / 4, 0 - 2 / 4]),
        (Advantage.max_rl, True, [1.5, -1.0]),
    ],
)
def test_closed_forms(kind, std_normalise, expected):
    found = advantages([1, 1, 0, 0, 0], kind, std_normalise)
    win, loss = expected
    np.testing.assert_allclose(found, [win, win, loss, loss, loss], rtol=1e-5)


@given(kinds, st.floats(-2, 2), st.integers(1, 9), st.booleans())
def test_a_group_without_differences_or_of_one_gives_exactly_zero(kind, reward, size, normalise):
    assert not advantages([reward] * size, kind, normalise).any()


@given(rewards, kinds, st.booleans())
def test_advantages_sum_to_zero_and_keep_the_order_of_rewards(values, kind, normalise):
    found = advantages(values, kind, normalise)
    assert found.sum() == pytest.approx(0, abs=1e-6 * max(1, np.abs(found).max()))
    assert all(found[i] >= found[j] for i, j in np.ndindex(2 * (len(values),))
               if values[i] > values[j])  # fmt: skip


@given(binary)
def test_rloo_is_the_reward_minus_the_mean_of_the_others(values):
    found = advantages(values, Advantage.rloo, True)
    for i, value in enumerate(values):
        others = values[:i] + values[i + 1 :]
        assert found[i] == pytest.approx(value - np.mean(others), abs=1e-12)


@given(binary, st.floats(0.5, 4))
def test_std_normalised_advantages_do_not_depend_on_the_scale_of_rewards(values, scale):
    base = advantages(values, Advantage.grpo, True)
    scaled = advantages([v * scale for v in values], Advantage.grpo, True)
    np.testing.assert_allclose(scaled, base, rtol=1e-4)


def test_max_rl_gives_no_signal_when_penalties_make_the_mean_negative():
    assert not advantages([0, -1], Advantage.max_rl, True).any()


@pytest.mark.parametrize(
    ("length", "expected"), [(0, 0), (900, 0), (901, -0.005), (950, -0.25), (1000, -0.5)]
)
def test_overlong_penalty_grows_over_the_buffer(length, expected):
    assert overlong_penalty(length, 1000, 100, 0.5) == pytest.approx(expected)
