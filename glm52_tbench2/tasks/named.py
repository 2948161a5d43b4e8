"""Tasks by the name a person writes: SUITE for all of a suite, SUITE/SET for a task set."""

from collections.abc import Mapping
from typing import TypeVar

from ..config.errors import UserError
from ..config.paths import DATA
from .sets import load_set
from .suite import Task, load_suite, select
from .tbench2 import KnownTask, known_tasks

T = TypeVar("T", Task, KnownTask)


def named_tasks(name: str) -> list[Task]:
    """The tasks of `name`, whose files are in this repository.

    Raises UserError for an unknown suite or set, and for tbench2, whose files are not here.
    """
    if _suite(name) == "tbench2":
        raise UserError(
            "The tasks of tbench2 are not part of this repository, only their names and limits; "
            "write mini, or a set of mini."
        )
    return _chosen(name, load_suite(DATA / _suite(name) / "tasks"))


def named_facts(name: str) -> list[Task] | list[KnownTask]:
    """What is known of the tasks of `name`, with or without their files. Raises UserError."""
    if _suite(name) == "tbench2":
        return _chosen(name, known_tasks())
    return named_tasks(name)


def _suite(name: str) -> str:
    suite = name.split("/")[0]
    known = sorted(path.parent.name for path in DATA.glob("*/sets"))
    if suite not in known:
        raise UserError(f"There is no task suite {suite}; write {' or '.join(known)}.")
    return suite


def _chosen(name: str, tasks: Mapping[str, T]) -> list[T]:
    return select(tasks, load_set(name).ids if "/" in name else tasks)
