"""The golden scan tells a sound task from an unsound one."""

import threading
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.paths import DATA
from glm52_tbench2.tasks.check import Journal, Result, check_suite, evidence, report
from glm52_tbench2.tasks.suite import Task, load_suite


@dataclass
class Scored:
    reward: float | None
    error: str | None = None
    output: str = ""


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return list(load_suite(DATA / "mini" / "tasks").values())[:3]


def sound(task: Task, script: str | None) -> Scored:
    return Scored(1.0 if script == task.solution else 0.0)


def test_a_sound_suite_passes(tasks: list[Task], capsys: pytest.CaptureFixture[str]) -> None:
    results = check_suite(tasks, sound)
    assert [(result.task, result.attempt) for result in results] == [
        (task.id, attempt) for task in tasks for attempt in ("solution", "nothing", "wrong")
    ]
    assert all(result.ok for result in results)
    assert report(results) == 0
    assert capsys.readouterr().out == "3 tasks, 9 attempts: all score what they must.\n"


def test_each_unsound_attempt_is_told(
    tasks: list[Task], capsys: pytest.CaptureFixture[str]
) -> None:
    def runner(task: Task, script: str | None) -> Scored:
        if task is tasks[0] and script == task.solution:
            return Scored(0.0, output="1 failed\n")
        if task is tasks[1] and script is None:
            return Scored(1.0)
        if task is tasks[2] and script == task.wrong:
            return Scored(None, "no reward.txt")
        return sound(task, script)

    results = check_suite(tasks, runner)
    failures = [result for result in results if not result.ok]
    assert [(result.task, result.attempt, result.reward) for result in failures] == [
        (tasks[0].id, "solution", 0.0),
        (tasks[1].id, "nothing", 1.0),
        (tasks[2].id, "wrong", None),
    ]
    assert [evidence(result) for result in failures] == [
        f"{tasks[0].id}: solution must score 1, but: scored 0.0\n    | 1 failed",
        f"{tasks[1].id}: nothing must score 0, but: scored 1.0",
        f"{tasks[2].id}: wrong must score 0, but: no reward.txt",
    ]
    assert report(results) == 1
    assert capsys.readouterr().out == "3 tasks, 9 attempts: 3 tasks unsound.\n"


def test_a_runner_that_raises_fails_that_attempt_alone(tasks: list[Task]) -> None:
    def runner(task: Task, script: str | None) -> Scored:
        if task is tasks[1] and script is None:
            raise OSError("sandbox gone")
        return sound(task, script)

    failures = [result for result in check_suite(tasks, runner) if not result.ok]
    assert [(result.task, result.error) for result in failures] == [
        (tasks[1].id, "OSError: sandbox gone")
    ]


def scan(tasks: list[Task], path: Path, runner=sound, way: str = "local", **more) -> list[str]:
    """Attempts that a scan with the journal `path` really ran."""
    ran: list[str] = []

    def counted(task: Task, script: str | None) -> Scored:
        ran.append(task.id)
        return runner(task, script)

    with closing(Journal(path, way, **more)) as journal:
        results = check_suite(tasks, counted, journal=journal)
    assert len(results) == 9
    return ran


def test_a_second_scan_runs_only_what_has_no_verdict_yet(tasks: list[Task], tmp_path: Path) -> None:
    path = tmp_path / "new" / "mini.jsonl"

    def broken(task: Task, script: str | None) -> Scored:
        if task is tasks[1] and script is None:
            raise OSError("sandbox gone")
        return Scored(0.0)

    assert len(scan(tasks, path, broken)) == 9
    assert scan(tasks, path, broken) == [tasks[1].id]
    assert scan(tasks, path) == [tasks[1].id]
    assert scan(tasks, path) == []  # a wrong score is a verdict too, and is kept
    assert len(scan(tasks, path, way="docker")) == 9
    assert scan(tasks, path) == []
    assert len(scan(tasks, path, fresh=True)) == 9


def test_a_scan_that_was_killed_goes_on_from_whole_lines(tasks: list[Task], tmp_path: Path) -> None:
    path = tmp_path / "mini.jsonl"
    scan(tasks, path)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:8]) + b'{"key": "1')
    assert len(scan(tasks, path)) == 5
    assert scan(tasks, path) == []


def test_a_changed_task_is_run_again(tasks: list[Task], tmp_path: Path) -> None:
    path = tmp_path / "mini.jsonl"
    scan(tasks, path)
    changed = [replace(tasks[0], instruction="Do it otherwise."), *tasks[1:]]
    assert scan(changed, path) == [tasks[0].id] * 3


def test_two_scans_do_not_write_one_journal(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "a.jsonl", "")), pytest.raises(UserError, match="--out"):
        Journal(tmp_path / "a.jsonl", "")
    with pytest.raises(UserError, match="cannot be written"):
        Journal(tmp_path / "a.jsonl" / "b.jsonl", "")


def test_what_is_kept_is_the_end_of_what_the_tests_printed(tmp_path: Path) -> None:
    result = Result("t", "wrong", 0.0, 1.0, None, "\n".join(map(str, range(100))))
    assert evidence(result).splitlines()[-1] == "    | 99"
    assert len(evidence(result).splitlines()) == 13


def test_an_interrupt_drops_what_has_not_begun(tasks: list[Task]) -> None:
    ran: list[str] = []
    over = threading.Event()

    def runner(task: Task, script: str | None) -> Scored:
        ran.append(task.id)
        if len(ran) > 1:
            over.wait(60)
        return sound(task, script)

    def told(result: Result, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_suite(tasks, runner, 1, told=told)
    over.set()
    assert len(ran) <= 2
