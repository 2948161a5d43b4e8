"""How far the trainer's probabilities are from those the engine sampled with.

D = log p_train - log p_rollout on every generated token, before the update. Pure numpy over the
whole batch: quantiles do not add over ranks, so the rank that writes train/step_N.parquet, and
holds every log-prob, computes these.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from glm52_tbench2.config.schema import NEAR_CAP, KlEstimator

FloatArray = NDArray[np.floating]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.integer]

SHARE_LIMITS = (1, 5, 10)
QUANTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
# Versions further behind than this share one class, so that the number of metrics stays bounded.
OLDEST_CLASS = 8
SHORT = 0.1
"""A turn of less than this share of the per-turn cap is a short one."""
LOG_RATIO_CLAMP = 20.0
KL_CLAMP = 10.0


@dataclass(frozen=True)
class ScoredTokens:
    """The generated tokens of a batch, one entry each. All arrays are [N]."""

    train_logp: FloatArray
    """float32, the trainer's own forward before the update, at the rollout's temperature."""
    rollout_logp: FloatArray
    """float32, as the engine reported it."""
    sample_index: IntArray
    """int, the token's sample, 0-based."""
    advantages: FloatArray
    """float32, the sample's advantage."""
    truncated: BoolArray
    """bool, True on the tokens of a truncated sample."""
    staleness: IntArray
    """int, trainer version minus the version that generated the token."""
    turn_fill: FloatArray
    """float32, tokens of the token's turn over the per-turn cap."""


def kl_estimate(d: FloatArray, estimator: KlEstimator) -> FloatArray:
    """Per-token estimate of KL(pi || base) from d = log pi - log base, tokens drawn from pi.

    Args:
        d: [N].

    Returns:
        [N], in nats.

    k1 = d; k2 = d^2 / 2; k3 = exp(-d) - 1 + d; low_var_kl = k3 with d clamped to +-20 and the
    value to +-10 (Schulman, "Approximating KL divergence", 2020; the clamps as in verl).
    """
    match estimator:
        case KlEstimator.k1:
            return d
        case KlEstimator.k2:
            return d * d / 2
        case KlEstimator.k3:
            return np.exp(-d) - 1 + d
        case KlEstimator.low_var_kl:
            d = np.clip(d, -LOG_RATIO_CLAMP, LOG_RATIO_CLAMP)
            return np.clip(np.exp(-d) - 1 + d, -KL_CLAMP, KL_CLAMP)


def sample_mean(values: FloatArray, sample_index: IntArray, num_samples: int) -> float:
    """Mean over samples of each sample's token mean; a sample without tokens counts as 0."""
    sums = np.bincount(sample_index, weights=values, minlength=num_samples)
    counts = np.bincount(sample_index, minlength=num_samples)
    return float((sums / np.maximum(counts, 1)).sum() / num_samples)


def distance_metrics(d: FloatArray) -> dict[str, float]:
    """The distribution of |D| over tokens, unclamped; `d` is [N] with N > 0.

    share_clamped counts the tokens on which low_var_kl has hit its ceiling and tells nothing more:
    D >= 2.6 or D <= -11.
    """
    distance = np.abs(d)
    found = {"abs_mean": float(distance.mean())}
    values = np.quantile(distance, list(QUANTILES.values()))
    found |= {f"abs_{name}": float(value) for name, value in zip(QUANTILES, values, strict=True)}
    found |= {f"share_over_{limit}": float((distance > limit).mean()) for limit in SHARE_LIMITS}
    found["share_clamped"] = float((kl_estimate(-d, KlEstimator.low_var_kl) >= KL_CLAMP).mean())
    return found


def mismatch_metrics(
    tokens: ScoredTokens, num_samples: int, estimator: KlEstimator
) -> dict[str, float]:
    """The metrics `trainer/train_rollout_kl` and `trainer/mismatch/...` of one batch.

    Args:
        tokens: every generated token of the batch.
        num_samples: samples in the batch, also those without a generated token.
        estimator: behind train_rollout_kl = mean over samples of the token mean of
            KL(rollout || train), d = -D; the published curves use low_var_kl.

    Returns:
        name -> value. A split without tokens is left out, never 0. Tokens with a NaN or infinite
        D are counted in trainer/mismatch/nonfinite_share and left out of everything else; when
        no finite token is left only the shares are there.

    Raises:
        ValueError: train_logp is rollout_logp under another name. Every metric would be 0 by
            construction and the run would look healthy: score with the trainer's own forward.
    """
    if np.shares_memory(tokens.train_logp, tokens.rollout_logp):
        raise ValueError(
            "train_logp and rollout_logp are the same array, which makes every mismatch metric 0; "
            "score the batch with the trainer's own forward"
        )
    d = tokens.train_logp.astype(np.float64) - tokens.rollout_logp.astype(np.float64)
    if d.size == 0:
        return {}
    finite = np.isfinite(d)
    found = {
        "trainer/mismatch/nonfinite_share": float((~finite).mean()),
        # 1.0 says that the two sides came out of one computation, whatever the arrays' history.
        "trainer/mismatch/zero_share": float((d == 0).mean()),
    }
    if not finite.any():
        return found
    kl = kl_estimate(-d[finite], estimator)
    found["trainer/train_rollout_kl"] = sample_mean(kl, tokens.sample_index[finite], num_samples)
    for name, members in _splits(tokens).items():
        members = members & finite
        if not members.any():
            continue
        prefix = "trainer/mismatch/" + (f"{name}/" if name else "")
        if name:
            found[prefix + "token_share"] = float(members.sum() / finite.sum())
        found |= {prefix + key: value for key, value in distance_metrics(d[members]).items()}
    return found


def _splits(tokens: ScoredTokens) -> dict[str, BoolArray]:
    """Name of each split -> [N] bool; "" is every token."""
    giant = tokens.turn_fill >= NEAR_CAP
    splits: dict[str, BoolArray] = {
        "": np.ones(tokens.advantages.shape, dtype=bool),
        "advantage_positive": tokens.advantages > 0,
        "advantage_negative": tokens.advantages < 0,
        "advantage_zero": tokens.advantages == 0,
        "truncated": tokens.truncated,
        "not_truncated": ~tokens.truncated,
        "advantage_negative_truncated": (tokens.advantages < 0) & tokens.truncated,
        "turn_short": tokens.turn_fill < SHORT,
        "turn_medium": (tokens.turn_fill >= SHORT) & ~giant,
        "turn_near_cap": giant,
        "advantage_positive_near_cap": (tokens.advantages > 0) & giant,
        "advantage_negative_near_cap": (tokens.advantages < 0) & giant,
    }
    for staleness in range(OLDEST_CLASS):
        splits[f"staleness_{staleness}"] = tokens.staleness == staleness
    splits[f"staleness_{OLDEST_CLASS}_up"] = tokens.staleness >= OLDEST_CLASS
    return splits
