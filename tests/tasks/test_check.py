"""The golden scan tells a sound task from an unsound one."""

from dataclasses import dataclass

import pytest

from glm52_tbench2.config.paths import DATA
from glm52_tbench2.tasks.check import check_suite
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


def test_a_sound_suite_passes(tasks: list[Task]) -> None:
    results = check_suite(tasks, sound)
    assert [(result.task.id, result.attempt) for result in results] == [
        (task.id, attempt) for task in tasks for attempt in ("solution", "nothing", "wrong")
    ]
    assert all(result.ok for result in results)


def test_each_unsound_attempt_is_told(tasks: list[Task]) -> None:
    def runner(task: Task, script: str | None) -> Scored:
        if task is tasks[0] and script == task.solution:
            return Scored(0.0)
        if task is tasks[1] and script is None:
            return Scored(1.0)
        if task is tasks[2] and script == task.wrong:
            return Scored(None, "no reward.txt")
        return sound(task, script)

    failures = [result for result in check_suite(tasks, runner) if not result.ok]
    assert [(result.task.id, result.attempt, result.reward) for result in failures] == [
        (tasks[0].id, "solution", 0.0),
        (tasks[1].id, "nothing", 1.0),
        (tasks[2].id, "wrong", None),
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
