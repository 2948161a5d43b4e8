"""Terminal-Bench-2 as far as this repository holds it: the facts of its 89 tasks, and their sets.

The tasks themselves are read from a checkout of the benchmark (`data.tasks_dir`), version 2.0:
their text stays out of this repository.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

from ..config.paths import DATA
from .sets import render_sets
from .split import split

NUM_HELD_OUT = 20


@dataclass(frozen=True)
class KnownTask:
    """What is known of a task without its files."""

    id: str
    difficulty: str
    category: str
    workdir: str
    agent_timeout_s: float
    verifier_timeout_s: float
    memory_mb: int
    storage_mb: int
    docker_image: str
    family: str = ""


def known_tasks(data: Path = DATA) -> dict[str, KnownTask]:
    """The 89 tasks by id, from tbench2/tasks.tsv in the folder `data`."""
    with (data / "tbench2" / "tasks.tsv").open() as file:
        return {
            row["task_id"]: KnownTask(
                id=row["task_id"],
                difficulty=row["difficulty"],
                category=row["category"],
                workdir=row["workdir"],
                agent_timeout_s=float(row["agent_timeout_s"]),
                verifier_timeout_s=float(row["verifier_timeout_s"]),
                memory_mb=int(row["memory_mb"]),
                storage_mb=int(row["storage_mb"]),
                docker_image=row["docker_image"],
            )
            for row in csv.DictReader(file, delimiter="\t")
        }


def sets(data: Path = DATA) -> dict[str, str]:
    """The manifests of train69, train8 and eval20, by file name, as the rule gives them."""
    difficulty = {task.id: task.difficulty for task in known_tasks(data).values()}
    train, held_out = split(difficulty, NUM_HELD_OUT)
    rule = "the mix of difficulties of the whole suite, chosen by the rule in tasks/split.py."
    return render_sets("tbench2", train, held_out, ("train69", "train8", "eval20"), rule)


if __name__ == "__main__":
    for name, text in sets().items():
        (DATA / "tbench2" / "sets" / name).write_text(text)
