"""Time to compute a run's identity: python benchmarks/identity.py [OVERRIDES]

Prints milliseconds: the whole in a process of its own, as a command pays it, then the median and
the slowest of many, and where they go. CPU time is this process's own; git works beside it.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from glm52_tbench2.config.checkout import Git, machine, sources
from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.fingerprints import folder_hash, tree_hash
from glm52_tbench2.config.identity import PACKAGES, _version, identify
from glm52_tbench2.config.paths import resolve
from glm52_tbench2.tasks.sets import load_set

REPEATS = 20

FIRST = """
import sys, time
from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.identity import identify
from glm52_tbench2.tasks.sets import load_set
config = compose(sys.argv[1:])
sets = [load_set(name) for name in (config.data.train, config.data.eval)]
began, cpu = time.perf_counter(), time.process_time()
identify(config, sets)
print(1000 * (time.perf_counter() - began), 1000 * (time.process_time() - cpu))
"""


def first_in_a_process(overrides: list[str]) -> tuple[float, float]:
    command = [sys.executable, "-c", FIRST, *overrides]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    wall, cpu = map(float, done.stdout.split())
    return wall, cpu


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds by the clock and of CPU."""
    began, cpu = time.perf_counter(), time.process_time()
    work()
    return 1000 * (time.perf_counter() - began), 1000 * (time.process_time() - cpu)


def tell(name: str, times: list[tuple[float, float]]) -> None:
    wall = [one for one, _ in times]
    cpu = median(one for _, one in times)
    print(f"{name:<20}{median(wall):7.1f} ms, slowest {max(wall):6.1f} ms; CPU {cpu:5.1f} ms")


def main() -> None:
    overrides = sys.argv[1:] or ["experiment=smoke"]
    config = compose(overrides)
    sets = [load_set(name) for name in (config.data.train, config.data.eval)]
    tasks_dir = resolve(config.data.tasks_dir)
    folders: list[Path] = [tasks_dir / task for one in sets for task in one.ids]
    tell("first in a process", [first_in_a_process(overrides) for _ in range(5)])
    for name, work in {
        "whole": lambda: identify(config, sets),
        "git": lambda: Git().told(),
        "sources": sources,
        "tasks": lambda: [tree_hash(folder) for folder in folders],
        "starting weights": lambda: folder_hash(resolve(config.model.path)),
        "package versions": lambda: [_version(package) for package in PACKAGES],
        "machine": machine,
    }.items():
        tell(name, [timed(work) for _ in range(REPEATS)])


if __name__ == "__main__":
    main()
