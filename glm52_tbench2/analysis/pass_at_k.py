"""pass@k: how likely at least one of k samples of a task passes."""

import math
from collections.abc import Mapping

from .stats import Interval, mean_interval

PASS = 1.0
"""A sample passes with this reward: all of its task's tests."""

Counts = Mapping[str, tuple[int, int]]
"""Task id -> its samples, and how many of them passed."""


def pass_at_k(samples: int, passes: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k), with n samples of which c pass; unbiased (Chen et al. 2021).

    It is the share of the k-subsets of the samples that hold a pass. Raises ValueError unless
    0 <= passes <= samples and 1 <= k <= samples.
    """
    if not (0 <= passes <= samples and 1 <= k <= samples):
        raise ValueError(f"no pass@{k} of {passes} passes in {samples} samples")
    return 1 - math.comb(samples - passes, k) / math.comb(samples, k)


def over_tasks(counts: Counts, k: int) -> Interval | None:
    """pass@k averaged over the tasks with at least k samples, and its interval over them.

    The interval is :func:`.stats.mean_interval`'s, of one value a task; None without such a task.
    """
    return mean_interval(
        {task: [pass_at_k(n, c, k)] for task, (n, c) in counts.items() if n >= k},
    )


def ks(samples: int) -> list[int]:
    """The k to tell of: 1, 2, 4, ... below `samples`, and `samples`."""
    powers = [2**i for i in range(samples.bit_length()) if 2**i < samples]
    return [*powers, samples] if samples else []
