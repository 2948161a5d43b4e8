"""Rewards of a group to advantages of its samples."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..config.schema import Advantage

STD_EPS = 1e-6


def advantages(
    rewards: Sequence[float], kind: Advantage, std_normalise: bool
) -> npt.NDArray[np.float64]:
    """Advantages (G,) of the G samples of one group, from their rewards after any penalty.

    With m the group's mean:

    - grpo: R - m, divided by (std + 1e-6) when `std_normalise`; std is the unbiased one
    - dr_grpo: R - m (Liu et al. 2025, "Understanding R1-Zero-Like Training")
    - rloo: R minus the mean of the others, which is G / (G - 1) * (R - m)
    - max_rl: (R - m) / m, for rewards >= 0; a mean of 0 or below gives no signal

    A group of one, or of equal rewards, gives 0.
    """
    values = np.asarray(rewards, dtype=np.float64)
    size = len(values)
    if size <= 1 or np.all(values == values[0]):
        return np.zeros(size)
    mean = values.mean()
    centred = values - mean
    match kind:
        case Advantage.grpo:
            return centred / (values.std(ddof=1) + STD_EPS) if std_normalise else centred
        case Advantage.dr_grpo:
            return centred
        case Advantage.rloo:
            return centred * size / (size - 1)
        case Advantage.max_rl:
            return centred / mean if mean > 0 else np.zeros(size)


def overlong_penalty(length: int, limit: int, buffer: int, factor: float) -> float:
    """What an episode of `length` tokens loses in reward: 0 down to -`factor`.

    DAPO's soft punishment: it grows linearly over the last `buffer` tokens before `limit`.
    """
    over = length - (limit - buffer)
    return -factor * over / buffer if over > 0 else 0.0
