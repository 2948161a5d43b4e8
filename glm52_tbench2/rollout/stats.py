"""Metrics of a batch: functions of its samples and of what making it cost.

Every share lies in [0, 1]; times are seconds. Names start with who computed them; the trainer has
its own. A batch read back from its file gives the metrics it gave when it was written.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from ..config.schema import NEAR_CAP
from .batch import Sample
from .outcome import OUTCOMES, Cause, has_verdict


def judged_tokens(group: Sequence[Sample]) -> int:
    """Tokens that are wasted when a group is dropped; those of samples without a verdict were
    counted when they were lost."""
    return sum(s.num_generated for s in group if has_verdict(s.end_reason))


def count_waste(stats: Counter[str], cause: str, tokens: int) -> None:
    """Counts generated tokens that no file of samples holds."""
    stats[f"wasted/{cause}"] += tokens
    stats["wasted_tokens"] += tokens


def rollout_metrics(
    samples: Sequence[Sample], stats: Mapping[str, float], version: int, max_turn_tokens: int
) -> dict[str, float]:
    """Metrics ``rollout/...`` and ``time/rollout_s`` of one training batch.

    `stats`: see :class:`~glm52_tbench2.rollout.batch.BatchInfo`; `version`: the weight version that
    trains on the batch, from which staleness counts.
    """
    versions = np.concatenate([s.weight_versions[s.loss_mask] for s in samples])
    lags = version - versions
    groups: dict[int, list[float]] = {}
    for sample in samples:
        groups.setdefault(sample.group, []).append(sample.reward + sample.penalty)
    silent = sum(len(set(rewards)) == 1 for rewards in groups.values())
    lengths = np.array([turn.end - turn.start for s in samples for turn in s.turns])
    kept = int(lengths.sum())
    wasted = stats.get("wasted_tokens", 0)
    wall = stats["wall_s"]
    return {
        **_common("rollout", samples),
        "rollout/zero_signal_share": silent / len(groups),
        "rollout/penalty_mean": _mean([s.penalty for s in samples]),
        "rollout/near_cap_turns": float(np.sum(lengths >= NEAR_CAP * max_turn_tokens)),
        "rollout/staleness_mean": float(lags.mean()),
        "rollout/staleness_max": float(lags.max()),
        "rollout/wasted_tokens": float(wasted),
        "rollout/wasted_share": wasted / (kept + wasted),
        "rollout/tokens_per_s": (kept + wasted) / wall,
        "time/rollout_s": wall,
        **{
            f"rollout/{name}": value
            for name, value in stats.items()
            if name not in ("wall_s", "wasted_tokens")
        },
    }


def eval_metrics(samples: Sequence[Sample], stats: Mapping[str, float]) -> dict[str, float]:
    """Metrics ``eval/...`` and ``time/eval_s`` of one evaluation."""
    return {
        **_common("eval", samples),
        "eval/missing": stats.get("missing", 0),
        "time/eval_s": stats["wall_s"],
    }


def _common(prefix: str, samples: Sequence[Sample]) -> dict[str, float]:
    turns = [turn for sample in samples for turn in sample.turns]
    generated = sum(turn.end - turn.start for turn in turns)
    read = sum(turn.start for turn in turns)
    total = max(sum(s.total_s for s in samples), 1e-9)
    rewards = [s.reward for s in samples]
    return {
        f"{prefix}/samples": float(len(samples)),
        f"{prefix}/reward_mean": _mean(rewards),
        f"{prefix}/reward_std": float(np.std(rewards)),
        f"{prefix}/truncated_share": _mean([s.truncated for s in samples]),
        **{
            f"{prefix}/end/{reason.value}": _mean([s.end_reason == reason for s in samples])
            for reason, outcome in OUTCOMES.items()
            if outcome.cause is Cause.policy
        },
        f"{prefix}/generated_tokens": float(generated),
        f"{prefix}/sample_tokens_mean": _mean([len(s.tokens) for s in samples]),
        f"{prefix}/turn_tokens_mean": generated / len(turns),
        f"{prefix}/turns_mean": len(turns) / len(samples),
        f"{prefix}/cached_share": sum(turn.cached_tokens for turn in turns) / read,
        f"{prefix}/generate_share": sum(s.generate_s for s in samples) / total,
        f"{prefix}/sandbox_share": sum(s.sandbox_s for s in samples) / total,
        f"{prefix}/verify_share": sum(s.verify_s for s in samples) / total,
    }


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
