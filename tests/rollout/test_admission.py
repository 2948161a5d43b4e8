"""Admission by its promises, over random orders of finishing, failing and training."""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from glm52_tbench2.config.schema import BatchOrder
from glm52_tbench2.rollout.admission import Admission

STEPS = 8


@st.composite
def runs(draw):
    return {
        "size": draw(st.integers(1, 4)),
        "staleness": draw(st.one_of(st.none(), st.integers(0, 3))),
        "order": draw(st.sampled_from(BatchOrder)),
        "waiting": draw(st.integers(1, 3)),
        "most_running": draw(st.integers(1, 20)),
        "drop": draw(st.sampled_from([0.0, 0.3])),
        "kill": draw(st.sampled_from([0.0, 0.05])),
        "there": frozenset(draw(st.sets(st.integers(2, STEPS - 1), max_size=3))),
        "seed": draw(st.integers(0, 10**6)),
    }


class Run:
    """A driver and a trainer that do what they may in a random order."""

    def __init__(
        self, size, staleness, order, waiting, most_running, drop, kill, there, seed
    ) -> None:
        self.there = there
        """Steps that had a batch from the first: their files were there when another was lost."""
        self.rng = random.Random(seed)
        self.size, self.staleness, self.order, self.waiting = size, staleness, order, waiting
        self.most_running, self.drop, self.kill = most_running, drop, kill
        self.version = 0
        self.born: dict[int, int] = {}
        self.finished: set[int] = set()
        self.dropped: set[int] = set()
        self.batches: dict[int, list[int]] = {}
        self.books = self.new_books()

    def new_books(self) -> Admission:
        there = self.batches.keys() | self.there
        missing = [step for step in range(1, STEPS + 1) if step not in there]
        done = self.dropped.union(*self.batches.values())
        return Admission(self.size, missing, self.staleness, self.order, self.waiting, done)

    def restart(self) -> None:
        self.books = self.new_books()
        for number in sorted(self.finished):
            self.books.restore(number, self.born[number])
            self.books.finish(number)
        self.take()  # as a driver does before it waits for anything

    def moves(self):
        if len(self.books.running) < self.most_running and self.books.may_start(self.version):
            yield self.start
        if self.books.running:
            yield self.end
        if self.version + 1 in self.batches.keys() | self.there:
            yield self.train

    def start(self) -> None:
        running = self.books.running
        number = self.books.start(self.version)
        assert number not in self.dropped.union(self.finished, running, *self.batches.values())
        self.born[number] = self.version

    def end(self) -> None:
        number = self.rng.choice(self.books.running)
        if self.rng.random() < self.drop:
            self.books.drop(number)
            self.dropped.add(number)
            return
        self.books.finish(number)
        self.finished.add(number)

    def train(self) -> None:
        self.version += 1

    @property
    def over(self) -> bool:
        return len(self.batches.keys() | self.there) == STEPS

    def take(self) -> None:
        while not self.over:
            step, taken = self.books.step, self.books.take()
            if taken is None:
                return
            self.finished -= set(taken)
            self.batches[step] = taken

    def play(self) -> None:
        while not self.over:
            if self.rng.random() < self.kill:
                self.restart()
                continue
            moves = list(self.moves())
            assert moves, "nothing may move: the run hangs"
            self.rng.choice(moves)()
            self.take()


LOST_WHILE_OTHERS_WAITED = {
    "size": 1,
    "staleness": 3,
    "order": BatchOrder.first_finished,
    "waiting": 1,
    "most_running": 3,
    "drop": 0.3,
    "kill": 0.05,
    "there": frozenset(),
    "seed": 345487,
}
"""A group that was due runs, and is lost with the driver: those that wait for it make batches."""


@settings(max_examples=300, deadline=None)
@given(runs())
@example(LOST_WHILE_OTHERS_WAITED)
def test_every_batch_is_full_fresh_enough_and_of_groups_of_its_own(given_run):
    run = Run(**given_run)
    run.play()
    taken = [number for step in sorted(run.batches) for number in run.batches[step]]
    assert len(taken) == len(set(taken)) == (STEPS - len(run.there)) * run.size
    assert not set(taken) & run.dropped
    if run.staleness is not None:
        for step, batch in run.batches.items():
            assert all(step - 1 - run.born[number] <= run.staleness for number in batch)
    if run.order is BatchOrder.in_order:
        assert taken == sorted(taken)
    # Nothing is generated that no batch takes.
    assert not run.books.running and not run.finished


def books(**changes) -> Admission:
    given_books = {
        "groups_per_batch": 2,
        "steps": range(1, 10),
        "max_staleness": None,
        "order": BatchOrder.first_finished,
        "max_waiting": 1,
    }
    return Admission(**(given_books | changes))


def test_the_first_to_finish_make_the_batch_or_the_first_that_were_drawn():
    for order, expected in ((BatchOrder.first_finished, [1, 2]), (BatchOrder.in_order, None)):
        found = books(order=order)
        for _ in range(3):
            found.start(0)
        found.finish(2)
        found.finish(1)
        assert found.take() == expected


def test_a_group_that_is_due_is_waited_for():
    found = books(max_staleness=1, groups_per_batch=1)
    assert [found.start(0), found.start(0)] == [0, 1]
    assert not found.may_start(0)
    found.finish(1)
    assert found.take() == [1]
    assert found.may_start(1)
    found.start(1)
    found.finish(2)
    # Group 0 is due in batch 2, whatever else is finished.
    assert found.take() is None
    found.finish(0)
    assert found.take() == [0]


@pytest.mark.parametrize("waiting", [1, 2])
def test_no_group_starts_while_batches_enough_wait(waiting):
    found = books(max_waiting=waiting, groups_per_batch=1)
    for step in range(waiting + 1):
        assert found.may_start(0), step
        number = found.start(0)
        found.finish(number)
        assert found.take() == [number]
    assert not found.may_start(0)
    assert found.may_start(1)


def test_without_staleness_it_is_the_synchronous_mode():
    found = books(max_staleness=0)
    started = 0
    while found.may_start(0):
        found.start(0)
        started += 1
    assert started == 2
