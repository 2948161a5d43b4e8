"""The golden scan tells a sound task from an unsound one."""

from dataclasses import dataclass

import pytest

from glm52_tbench2.config.paths import DATA
from glm52_tbench2.tasks.check import check_suite, report
from glm52_tbench2.tasks.suite import Task, load_suite


@dataclass
class Scored:
    reward: float | None
    error: str | None = None


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return list(load_suite(DATA / "mini" / "tasks").values())[:3]


def sound(task: Task, script: str | None) -> Scored:
    return Scored(1.0 if script == task.solution else 0.0)


def test_a_sound_suite_passes(tasks: list[Task], capsys: pytest.CaptureFixture[str]) -> None:
    results = check_suite(tasks, sound)
    assert [(result.task.id, result.attempt) for result in results] == [
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
            return Scored(0.0)
        if task is tasks[1] and script is None:
            return Scored(1.0)
        if task is tasks[2] and script == task.wrong:
            return Scored(None, "no reward.txt")
        return sound(task, script)

    results = check_suite(tasks, runner)
    failures = [result for result in results if not result.ok]
    assert [(result.task.id, result.attempt, result.reward) for result in failures] == [
        (tasks[0].id, "solution", 0.0),
        (tasks[1].id, "nothing", 1.0),
        (tasks[2].id, "wrong", None),
    ]
    assert report(results) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{tasks[0].id}: solution must score 1, but: scored 0.0",
        f"{tasks[1].id}: nothing must score 0, but: scored 1.0",
        f"{tasks[2].id}: wrong must score 0, but: no reward.txt",
        "3 tasks, 9 attempts: 3 tasks are unsound.",
    ]


def test_a_runner_that_raises_fails_that_attempt_alone(tasks: list[Task]) -> None:
    def runner(task: Task, script: str | None) -> Scored:
        if task is tasks[1] and script is None:
            raise OSError("sandbox gone")
        return sound(task, script)

    failures = [result for result in check_suite(tasks, runner) if not result.ok]
    assert [(result.task.id, result.error) for result in failures] == [
        (tasks[1].id, "OSError: sandbox gone")
    ]
