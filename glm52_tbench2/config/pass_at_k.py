"""pass@k of one task: how likely at least one of k samples passes.

Here because a run's results and their readers both tell of it.
"""

import math

PASS = 1.0
"""A sample passes with this reward: all of its task's tests."""


def pass_at_k(samples: int, passes: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k), with n samples of which c pass; unbiased (Chen et al. 2021).

    It is the share of the k-subsets of the samples that hold a pass. Raises ValueError unless
    0 <= passes <= samples and 1 <= k <= samples.
    """
    if not (0 <= passes <= samples and 1 <= k <= samples):
        raise ValueError(f"no pass@{k} of {passes} passes in {samples} samples")
    return 1 - math.comb(samples - passes, k) / math.comb(samples, k)


def ks(samples: int) -> list[int]:
    """The k to tell of: 1, 2, 4, ... below `samples`, and `samples`."""
    powers = [2**i for i in range(samples.bit_length()) if 2**i < samples]
    return [*powers, samples] if samples else []
