"""Which tasks a step draws, and every seed in it: functions of the run's seed and the step alone.

Nothing is carried from step to step, so a resumed run needs no cursor, and a sample draws the same
random numbers in whatever order samples finish.
"""

import hashlib
from collections.abc import Iterator, Sequence


def _hash(*parts: object) -> bytes:
    return hashlib.sha256("/".join(map(str, parts)).encode()).digest()


def shuffled(tasks: Sequence[str], *key: object) -> list[str]:
    """The tasks in an order that `key` alone decides, the same on every platform."""
    return sorted(tasks, key=lambda task: _hash(*key, task))


def draw(tasks: Sequence[str], seed: int, group: int, repeats: int) -> str:
    """The task of group `group` (from 0): endless epochs, each a fresh shuffle of `tasks`, in which
    every task gets `repeats` groups in a row."""
    epoch, place = divmod(group // repeats, len(tasks))
    return shuffled(tasks, seed, "epoch", epoch)[place]


def draws(tasks: Sequence[str], seed: int, step: int, per_step: int, repeats: int) -> Iterator[str]:
    """The tasks step `step` (1-based) draws, without end.

    The first `per_step` are the step's share of endless epochs (see :func:`draw`).
    Later ones replace groups that a filter dropped: they come from a shuffle of the step's own,
    tasks it has not drawn first, and leave the epochs untouched.
    """
    first = (step - 1) * per_step
    share = [draw(tasks, seed, group, repeats) for group in range(first, first + per_step)]
    yield from share
    unseen = [task for task in tasks if task not in share]
    yield from shuffled(unseen, seed, "refill", step)
    lap = 0
    while True:
        yield from shuffled(tasks, seed, "refill", step, lap)
        lap += 1


def sampling_seed(seed: int, *place: object) -> int:
    """Seed (31 bits) of the random numbers drawn at `place`: step, group, index, turn."""
    return int.from_bytes(_hash(seed, "sample", *place)[:4], "big") & 0x7FFFFFFF
