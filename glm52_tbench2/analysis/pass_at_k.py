"""pass@k of many tasks, with its interval."""

from collections.abc import Mapping

from ..config.pass_at_k import pass_at_k
from .stats import Interval, mean_interval

Counts = Mapping[str, tuple[int, int]]
"""Task id -> its samples, and how many of them passed."""


def over_tasks(counts: Counts, k: int) -> Interval | None:
    """pass@k averaged over the tasks with at least k samples, and its interval over them.

    The interval is :func:`.stats.mean_interval`'s, of one value a task; None without such a task.
    """
    return mean_interval(
        {task: [pass_at_k(n, c, k)] for task, (n, c) in counts.items() if n >= k},
    )
