"""Proof that a suite scores what it says: solutions 1, doing nothing 0, wrong attempts 0."""

import fcntl
import hashlib
import json
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from ..config.errors import UserError
from ..config.words import counted
from .suite import Task, asked

_KEPT_CHARS = 4000
"""Of what the tests printed, the end."""
_SHOWN_LINES = 12


class Verdict(Protocol):
    """What a verification gave: a reward, or the reason why there is none."""

    @property
    def reward(self) -> float | None: ...

    @property
    def error(self) -> str | None: ...

    @property
    def output(self) -> str: ...


Runner = Callable[[Task, str | None], Verdict]
"""Runs a shell script (None: nothing) in a fresh sandbox of the task, then its verifier."""


@dataclass(frozen=True)
class Result:
    """What an attempt scored."""

    task: str
    attempt: str
    """solution, nothing or wrong."""
    expected: float
    reward: float | None
    error: str | None
    output: str = ""
    """The end of what the tests printed."""

    @property
    def ok(self) -> bool:
        return self.error is None and self.reward == self.expected


class Journal:
    """The results of a scan in a file, one a line, so that a later scan goes on where it stopped.

    A result counts for the same task, attempt and way of running; one without a verdict never does.
    """

    def __init__(self, path: Path, way: str, fresh: bool = False) -> None:
        """`way`: what else decides a result, the sandbox say; `fresh`: forget what there is.

        Raises UserError when another scan is writing there, or nothing can be written.
        """
        self._way = way
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                f"Another check is writing {path}; wait for it, or write --out ANOTHER_FOLDER."
            ) from error
        except OSError as error:
            raise UserError(
                f"{path} cannot be written ({error.strerror}); write --out FOLDER."
            ) from error
        if fresh:
            self._file.truncate(0)
        self._file.seek(0)
        self._known: dict[str, Result] = {}
        for line in self._file:
            try:
                fields = json.loads(line)
                key = fields.pop("key")
                self._known[key] = Result(**fields)
            except (ValueError, TypeError, KeyError, AttributeError):
                continue  # cut off by a kill

    def known(self, task: Task, attempt: str, script: str | None) -> Result | None:
        """The result with a verdict that is there already."""
        found = self._known.get(self._key(task, attempt, script))
        return found if found is not None and found.reward is not None else None

    def add(self, result: Result, task: Task, script: str | None) -> None:
        """Keeps a result."""
        key = self._key(task, result.attempt, script)
        with self._lock:
            # The first newline ends what a kill has cut off.
            self._file.write("\n" + json.dumps({"key": key, **asdict(result)}) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Lets another scan write there."""
        self._file.close()

    def _key(self, task: Task, attempt: str, script: str | None) -> str:
        parts = (self._way, task.id, asked(task), attempt, script or "")
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def attempts(task: Task) -> Iterator[tuple[str, str | None, float]]:
    """(name, script, the reward it must get) of each attempt; a task may have no wrong one."""
    yield "solution", task.solution, 1.0
    yield "nothing", None, 0.0
    if task.wrong is not None:
        yield "wrong", task.wrong, 0.0


def check_suite(
    tasks: Iterable[Task],
    runner: Runner,
    num_threads: int = 4,
    journal: Journal | None = None,
    told: Callable[[Result, int, int], None] = lambda result, done, total: None,
) -> list[Result]:
    """Runs every attempt at every task, `num_threads` at a time, and tells what each scored.

    What `journal` knows is not run again. `told` hears of each result as it comes, with how many
    there are and will be. An exception of the runner is that attempt's error; the scan goes on.
    """
    jobs = [(task, *attempt) for task in tasks for attempt in attempts(task)]
    count, lock = 0, threading.Lock()

    def run(job: tuple[Task, str, str | None, float]) -> Result:
        nonlocal count
        task, name, script, expected = job
        result = journal.known(task, name, script) if journal else None
        if result is None:
            result = Result(task.id, name, expected, None, None)
            try:
                verdict = runner(task, script)
                end = verdict.output[-_KEPT_CHARS:]
                result = replace(result, reward=verdict.reward, error=verdict.error, output=end)
            except Exception as error:
                result = replace(result, error=f"{type(error).__name__}: {error}")
            if journal:
                journal.add(result, task, script)
        with lock:
            count += 1
            told(result, count, len(jobs))
        return result

    pool = ThreadPoolExecutor(num_threads)
    try:
        return list(pool.map(run, jobs))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def evidence(result: Result) -> str:
    """A failed attempt: what it must score, what it got, and the end of what the tests printed."""
    got = result.error or f"scored {result.reward}"
    told = f"{result.task}: {result.attempt} must score {result.expected:g}, but: {got}"
    lines = result.output.rstrip().splitlines()[-_SHOWN_LINES:]
    return "\n".join([told, textwrap.indent("\n".join(lines), "    | ")] if lines else [told])


def report(results: list[Result]) -> int:
    """Prints a closing line; 0 when every attempt scored what it must."""
    failures = [result for result in results if not result.ok]
    tasks = {result.task for result in results}
    unsound = {result.task for result in failures}
    print(
        f"{counted(len(tasks), 'task')}, {counted(len(results), 'attempt')}: "
        + (f"{counted(len(unsound), 'task')} unsound." if unsound else "all score what they must.")
    )
    return 1 if failures else 0
