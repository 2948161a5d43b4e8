"""Proof that a suite scores what it says: solutions 1, doing nothing 0, wrong attempts 0."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from .suite import Task


class Verdict(Protocol):
    """What a verification gave: a reward, or the reason why there is none."""

    @property
    def reward(self) -> float | None: ...

    @property
    def error(self) -> str | None: ...


Runner = Callable[[Task, str | None], Verdict]
"""Runs a shell script (None: nothing) in a fresh sandbox of the task, then its verifier."""


@dataclass(frozen=True)
class Result:
    task: Task
    attempt: str
    """solution, nothing or wrong."""
    expected: float
    reward: float | None
    error: str | None

    @property
    def ok(self) -> bool:
        return self.error is None and self.reward == self.expected


def attempts(task: Task) -> Iterator[tuple[str, str | None, float]]:
    """(name, script, the reward it must get) of each attempt; a task may have no wrong one."""
    yield "solution", task.solution, 1.0
    yield "nothing", None, 0.0
    if task.wrong is not None:
        yield "wrong", task.wrong, 0.0


def check_suite(tasks: Iterable[Task], runner: Runner, num_threads: int = 4) -> list[Result]:
    """Runs every attempt at every task, `num_threads` at a time, and tells what each scored.

    An exception of the runner is that attempt's error; the scan goes on.
    """

    def run(job: tuple[Task, str, str | None, float]) -> Result:
        task, name, script, expected = job
        try:
            verdict = runner(task, script)
        except Exception as error:
            return Result(task, name, expected, None, f"{type(error).__name__}: {error}")
        return Result(task, name, expected, verdict.reward, verdict.error)

    jobs = [(task, *attempt) for task in tasks for attempt in attempts(task)]
    with ThreadPoolExecutor(num_threads) as pool:
        return list(pool.map(run, jobs))


def report(results: list[Result]) -> int:
    """Prints each attempt that did not score what it must, and a closing line; 0 when all did."""
    failures = [result for result in results if not result.ok]
    for result in failures:
        got = result.error or f"scored {result.reward}"
        print(f"{result.task.id}: {result.attempt} must score {result.expected:g}, but: {got}")
    tasks = {result.task.id for result in results}
    unsound = {result.task.id for result in failures}
    print(
        f"{len(tasks)} tasks, {len(results)} attempts: "
        + (f"{len(unsound)} tasks are unsound." if unsound else "all score what they must.")
    )
    return 1 if failures else 0
