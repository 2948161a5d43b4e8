"""Mismatch metrics against closed forms."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glm52_tbench2.config.schema import KlEstimator
from glm52_tbench2.trainer.mismatch import ScoredTokens, kl_estimate, mismatch_metrics

# A loaded machine is slow, not wrong.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def scored(d: list[float], **changes: Any) -> ScoredTokens:
    """Tokens with D = `d`, one sample, A = 1, on-policy."""
    n = len(d)
    fields: dict[str, Any] = {
        "train_logp": np.array(d, dtype=np.float32) - 20,
        "rollout_logp": np.full(n, -20.0, dtype=np.float32),
        "sample_index": np.zeros(n, dtype=np.int64),
        "advantages": np.ones(n, dtype=np.float32),
        "truncated": np.zeros(n, dtype=bool),
        "staleness": np.zeros(n, dtype=np.int64),
        "turn_fill": np.full(n, 0.5, dtype=np.float32),
    }
    return ScoredTokens(**(fields | {k: np.asarray(v) for k, v in changes.items()}))


def metrics_of(tokens: ScoredTokens, num_samples: int = 1) -> dict[str, float]:
    return mismatch_metrics(tokens, num_samples, KlEstimator.low_var_kl)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (KlEstimator.k1, [0.5, -3.0, 30.0]),
        (KlEstimator.k2, [0.125, 4.5, 450.0]),
        (KlEstimator.k3, [math.exp(-0.5) - 0.5, math.exp(3) - 4, 29.0]),
        (KlEstimator.low_var_kl, [math.exp(-0.5) - 0.5, 10.0, 10.0]),
    ],
)
def test_estimators_have_their_closed_form(estimator: KlEstimator, expected: list[float]) -> None:
    np.testing.assert_allclose(kl_estimate(np.array([0.5, -3.0, 30.0]), estimator), expected)


def test_k3_estimates_the_kl_of_the_rollout_policy_without_bias() -> None:
    rollout, train = np.array([0.7, 0.2, 0.1]), np.array([0.5, 0.2, 0.3])
    kl = (rollout * np.log(rollout / train)).sum()
    d = np.log(rollout) - np.log(train)
    assert (rollout * kl_estimate(d, KlEstimator.k3)).sum() == pytest.approx(kl)


@pytest.mark.parametrize(("d", "share"), [(2.6, 0.0), (2.7, 1.0), (-10.9, 0.0), (-11.1, 1.0)])
def test_the_published_kl_saturates_where_the_page_says(d: float, share: float) -> None:
    assert metrics_of(scored([d]))["trainer/mismatch/share_clamped"] == share


def test_train_rollout_kl_is_the_mean_over_samples_of_token_means() -> None:
    tokens = scored([0.1, -0.2, 3.0], sample_index=[0, 0, 1])

    def kl(d: float) -> float:
        return min(math.exp(d) - 1 - d, 10.0)

    expected = ((kl(0.1) + kl(-0.2)) / 2 + kl(3.0)) / 2
    found = metrics_of(tokens, num_samples=2)["trainer/train_rollout_kl"]
    assert found == pytest.approx(expected, rel=1e-5)


def test_distances_are_not_clamped() -> None:
    found = metrics_of(scored([15.0, -0.5, 2.0, -6.0]))
    prefix = "trainer/mismatch/"
    assert found[prefix + "abs_mean"] == pytest.approx(23.5 / 4)
    assert found[prefix + "abs_p50"] == pytest.approx(4.0)
    assert found[prefix + "share_over_1"] == 0.75
    assert found[prefix + "share_over_5"] == 0.5
    assert found[prefix + "share_over_10"] == 0.25


def test_the_far_quantile_sees_one_token_in_a_thousand() -> None:
    found = metrics_of(scored([0.01] * 998 + [8.0, 8.0]))
    assert found["trainer/mismatch/abs_p50"] == pytest.approx(0.01, rel=1e-3)
    assert found["trainer/mismatch/abs_p999"] == pytest.approx(8.0, rel=1e-3)


def test_splits_hold_their_own_tokens_and_empty_ones_are_left_out() -> None:
    tokens = scored(
        [1.0, 2.0, 3.0, 4.0],
        advantages=np.array([1.0, -1.0, -1.0, 0.0], dtype=np.float32),
        truncated=np.array([False, True, True, False]),
        staleness=np.array([0, 1, 30, 0]),
        turn_fill=np.array([0.95, 0.95, 0.05, 0.5], dtype=np.float32),
    )
    found = metrics_of(tokens)
    means = {
        name.split("/")[2]: value
        for name, value in found.items()
        if name.endswith("/abs_mean") and name.count("/") == 3
    }
    assert means == pytest.approx(
        {
            "advantage_positive": 1.0,
            "advantage_negative": 2.5,
            "advantage_zero": 4.0,
            "truncated": 2.5,
            "not_truncated": 2.5,
            "staleness_0": 2.5,
            "staleness_1": 2.0,
            "staleness_8_up": 3.0,
            "advantage_negative_truncated": 2.5,
            "turn_short": 3.0,
            "turn_medium": 4.0,
            "turn_near_cap": 1.5,
            "advantage_positive_near_cap": 1.0,
            "advantage_negative_near_cap": 2.0,
        }
    )
    assert found["trainer/mismatch/truncated/token_share"] == 0.5


def test_metrics_cannot_be_zero_by_construction() -> None:
    logp = np.full(3, -1.0, dtype=np.float32)
    for alias in (logp, logp[:]):
        tokens = scored([0.0] * 3, train_logp=logp, rollout_logp=alias)
        with pytest.raises(ValueError, match="same array"):
            metrics_of(tokens)


def test_a_copied_log_prob_is_told_by_the_share_of_exact_zeros() -> None:
    assert metrics_of(scored([0.0, 0.0, 0.5, 0.5]))["trainer/mismatch/zero_share"] == 0.5


def test_non_finite_tokens_are_counted_and_do_not_poison_the_rest() -> None:
    tokens = scored([0.5, 0.5], train_logp=np.array([-np.inf, -19.5], dtype=np.float32))
    found = metrics_of(tokens)
    assert found["trainer/mismatch/nonfinite_share"] == 0.5
    assert found["trainer/mismatch/abs_mean"] == pytest.approx(0.5)
    lost = metrics_of(scored([0.5], train_logp=np.array([np.nan], dtype=np.float32)))
    assert lost == {"trainer/mismatch/nonfinite_share": 1.0, "trainer/mismatch/zero_share": 0.0}


def test_a_batch_without_generated_tokens_has_no_metrics() -> None:
    assert metrics_of(scored([])) == {}


@settings(UNTIMED, max_examples=50)
@given(st.integers(0, 2**31), st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_metrics_do_not_depend_on_the_order_of_tokens(seed: int, lengths: list[int]) -> None:
    rng = np.random.default_rng(seed)
    total = sum(lengths)
    index = np.repeat(np.arange(len(lengths)), lengths)
    fields: dict[str, Any] = {
        "train_logp": rng.normal(-2, 2, total).astype(np.float32),
        "rollout_logp": rng.normal(-2, 2, total).astype(np.float32),
        "sample_index": index,
        "advantages": rng.normal(size=len(lengths)).astype(np.float32)[index],
        "truncated": (rng.random(len(lengths)) > 0.5)[index],
        "staleness": rng.integers(0, 12, total),
        "turn_fill": rng.random(total).astype(np.float32),
    }
    order = rng.permutation(total)
    shuffled = {name: values[order] for name, values in fields.items()}
    found = metrics_of(ScoredTokens(**shuffled), len(lengths))
    assert found == pytest.approx(metrics_of(ScoredTokens(**fields), len(lengths)))


@settings(UNTIMED, max_examples=50)
@given(st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=50))
def test_kl_is_zero_only_where_nothing_differs_and_never_negative(d: list[float]) -> None:
    found = metrics_of(scored(d))
    kl = found["trainer/train_rollout_kl"]
    assert kl >= -1e-12
    if any(abs(x) > 1e-3 for x in d):
        assert kl > 0
    assert found["trainer/mismatch/abs_p50"] <= found["trainer/mismatch/abs_p999"]
