"""pass@k against its definition: every subset of k samples, counted."""

import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm52_tbench2.analysis.pass_at_k import over_tasks
from glm52_tbench2.config.pass_at_k import ks, pass_at_k


@st.composite
def draws(draw):
    samples = draw(st.integers(1, 9))
    return samples, draw(st.integers(0, samples)), draw(st.integers(1, samples))


@given(draws())
def test_it_is_the_share_of_subsets_that_hold_a_pass(drawn):
    samples, passes, k = drawn
    subsets = list(combinations([i < passes for i in range(samples)], k))
    assert pass_at_k(samples, passes, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@given(draws())
def test_it_rises_with_passes_and_with_k(drawn):
    samples, passes, k = drawn
    value = pass_at_k(samples, passes, k)
    assert 0 <= value <= 1
    assert pass_at_k(samples, passes, 1) == pytest.approx(passes / samples)
    if passes < samples:
        assert pass_at_k(samples, passes + 1, k) >= value
    if k < samples:
        assert pass_at_k(samples, passes, k + 1) >= value


@given(st.integers(1, 6), st.floats(0, 1), st.integers(1, 6))
def test_its_mean_over_draws_of_samples_is_what_k_fresh_samples_reach(samples, rate, k):
    """Unbiased: over Binomial(n, p) passes its mean is 1 - (1 - p)^k."""
    if k > samples:
        return
    mean = sum(
        math.comb(samples, c) * rate**c * (1 - rate) ** (samples - c) * pass_at_k(samples, c, k)
        for c in range(samples + 1)
    )
    assert mean == pytest.approx(1 - (1 - rate) ** k, abs=1e-9)


@pytest.mark.parametrize(("samples", "passes", "k"), [(4, 5, 1), (4, -1, 1), (4, 1, 0), (4, 1, 5)])
def test_what_has_no_value_is_refused(samples, passes, k):
    with pytest.raises(ValueError):
        pass_at_k(samples, passes, k)


def test_every_task_weighs_the_same_and_those_with_too_few_samples_are_left_out():
    counts = {"a": (4, 4), "b": (4, 0), "c": (1, 1)}
    at_1, at_4 = over_tasks(counts, 1), over_tasks(counts, 4)
    assert at_1 is not None and at_1.mean == pytest.approx(2 / 3) and at_1.num_tasks == 3
    assert at_4 is not None and at_4.mean == 0.5 and at_4.num_tasks == 2
    assert 0 <= at_4.low < 0.5 < at_4.high <= 1
    assert over_tasks(counts, 5) is None


@pytest.mark.parametrize(
    ("samples", "told"), [(0, []), (1, [1]), (2, [1, 2]), (4, [1, 2, 4]), (6, [1, 2, 4, 6])]
)
def test_the_ks_told_of(samples, told):
    assert ks(samples) == told
