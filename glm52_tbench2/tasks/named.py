"""Tasks by the name a person writes: SUITE for all of a suite, SUITE/SET or SET for a set."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from ..config.errors import UserError
from ..config.paths import DATA
from .sets import find_set, load_set
from .suite import Task, load_suite, select
from .tbench2 import KnownTask, known_tasks

T = TypeVar("T", Task, KnownTask)


def full_name(name: str) -> str:
    """`name` as SUITE or SUITE/SET; a SET that one suite alone has may be written without it.

    Raises UserError for an unknown suite or set.
    """
    suites = {path.parent.name for path in DATA.glob("*/sets")}
    return name if name in suites else find_set(name).name


def named_tasks(name: str, tasks_dir: Path | None = None) -> list[Task]:
    """The tasks of a full name, whose files are in `tasks_dir`, or in this repository.

    Raises UserError for tbench2 without `tasks_dir`: its files are not here.
    """
    suite = name.split("/")[0]
    if suite == "tbench2" and tasks_dir is None:
        raise UserError(
            "The tasks of tbench2 are not part of this repository, only their names and limits; "
            "write --tasks-dir FOLDER, or mini, or a set of mini."
        )
    return _chosen(name, load_suite(tasks_dir or DATA / suite / "tasks"))


def named_facts(name: str) -> list[Task] | list[KnownTask]:
    """What is known of the tasks of a full name, with or without their files."""
    if name.split("/")[0] == "tbench2":
        return _chosen(name, known_tasks())
    return named_tasks(name)


def _chosen(name: str, tasks: Mapping[str, T]) -> list[T]:
    return select(tasks, load_set(name).ids if "/" in name else tasks)
