"""Which groups may start, and which make the next batch, in fully asynchronous rollout.

Groups are numbered in the order they are drawn. With B groups a batch, one that starts while the
engines serve version v is due in batch v + 1 + max_staleness, so that none of its tokens is older
than allowed. At most (v + 1 + max_staleness) * B groups have then been started for batches, so
there is room for each before it is due: no group is generated only to be dropped as too old.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..config.schema import BatchOrder

NEVER = 2**31
"""When a group is due that may be of any age."""


@dataclass
class _Group:
    due: int
    """Last step whose batch may hold it."""
    finished: int | None = None
    """Its place in the order of finishing; None while it runs."""


class Admission:
    """The books of a run's groups. Steps and batches count from 1, versions and numbers from 0."""

    def __init__(
        self,
        groups_per_batch: int,
        steps: Sequence[int],
        max_staleness: int | None,
        order: BatchOrder,
        max_waiting: int,
        done: Collection[int] = (),
    ) -> None:
        """
        Args:
            steps: those whose batches are to be made, in their order.
            max_waiting: batches that may wait for the trainer, besides the one it trains.
            done: numbers of groups that batches hold or filters dropped.
        """
        self._size, self._steps, self._staleness = groups_per_batch, deque(steps), max_staleness
        self._in_order, self._max_waiting = order is BatchOrder.in_order, max_waiting
        self._done = set(done)
        self._groups: dict[int, _Group] = {}
        self._next = 0
        self._ends = 0
        self._skip_done()

    @property
    def step(self) -> int:
        """The step whose batch comes next."""
        return self._steps[0]

    @property
    def running(self) -> list[int]:
        """Numbers of groups that were started and have not finished."""
        return [number for number, group in self._groups.items() if group.finished is None]

    @property
    def waiting(self) -> int:
        """Groups that are finished and in no batch yet."""
        return len(self._groups) - len(self.running)

    def may_start(self, version: int) -> bool:
        """Whether one more group may start while every engine serves `version`."""
        if len(self._groups) >= self._places(self._due(version)):
            return False
        # One that a driver before this one left unfinished: those that finished wait for it.
        if self._in_order and self._next < max(self._groups, default=0):
            return True
        untrained = self.step - 1 - version + self.waiting // self._size
        return untrained <= self._max_waiting

    def start(self, version: int) -> int:
        """Starts the next group; its number."""
        number = self._next
        self._groups[number] = _Group(self._due(version))
        self._next += 1
        self._skip_done()
        return number

    def restore(self, number: int, version: int) -> None:
        """Takes over a group of a driver before this one, of which something is there.

        `version`: the oldest of its tokens'.
        """
        self._groups[number] = _Group(self._due(version))
        self._skip_done()

    def finish(self, number: int) -> None:
        """The group is complete and may be in a batch."""
        self._groups[number].finished = self._ends
        self._ends += 1

    def drop(self, number: int) -> None:
        """No batch takes the group; another will be started for it."""
        del self._groups[number]
        self._done.add(number)

    def take(self) -> list[int] | None:
        """The groups of the next batch, in their order, once they are there."""
        chosen = self._first_numbers() if self._in_order else self._first_finished()
        if chosen is None:
            return None
        for number in chosen:
            del self._groups[number]
        self._done.update(chosen)
        self._steps.popleft()
        return sorted(chosen)

    def _places(self, last: int) -> int:
        """Places in the batches that are still to be made, up to step `last`."""
        return self._size * sum(step <= last for step in self._steps)

    def _due(self, version: int) -> int:
        return NEVER if self._staleness is None else version + 1 + self._staleness

    def _skip_done(self) -> None:
        while self._next in self._done or self._next in self._groups:
            self._next += 1

    def _first_numbers(self) -> list[int] | None:
        first = sorted(self._groups)[: self._size]
        if len(first) < self._size or first[-1] > self._next:
            return None
        return first if all(self._groups[n].finished is not None for n in first) else None

    def _first_finished(self) -> list[int] | None:
        """Finished groups in the order they finished, save the places that others must have.

        Of the groups due by step M, those that later batches up to M cannot hold are in this one.
        """
        if self.waiting < self._size:
            return None
        owed: dict[int, int] = {}
        for due in {group.due for group in self._groups.values()} - {NEVER}:
            by_then = sum(group.due <= due for group in self._groups.values())
            owed[due] = max(0, by_then - max(0, self._places(due) - self._size))
        chosen: list[int] = []
        for number in sorted(
            (n for n, group in self._groups.items() if group.finished is not None),
            key=lambda n: self._groups[n].finished,  # type: ignore[arg-type,return-value]
        ):
            left = self._size - len(chosen) - 1
            due = self._groups[number].due
            after = {m: count - (due <= m) for m, count in owed.items()}
            if left >= 0 and all(count <= left for count in after.values()):
                chosen.append(number)
                owed = after
        return chosen if len(chosen) == self._size else None
