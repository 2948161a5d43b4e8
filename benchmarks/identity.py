"""Time to compute a run's identity: python benchmarks/identity.py [OVERRIDES]

Prints milliseconds: the whole in a process of its own, as a command pays it, then the median and
the slowest of many, and where they go.
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
began = time.perf_counter()
identify(config, sets)
print(f"{1000 * (time.perf_counter() - began):.1f}")
"""


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Median and slowest, milliseconds."""
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        seconds.append(1000 * (time.perf_counter() - began))
    return median(seconds), max(seconds)


def main() -> None:
    overrides = sys.argv[1:] or ["experiment=smoke"]
    config = compose(overrides)
    sets = [load_set(name) for name in (config.data.train, config.data.eval)]
    tasks_dir = resolve(config.data.tasks_dir)
    folders: list[Path] = [tasks_dir / task for one in sets for task in one.ids]
    command = [sys.executable, "-c", FIRST, *overrides]
    first = [
        float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    print(f"{'first in a process':<20}{median(first):7.1f} ms, slowest {max(first):.1f} ms")
    for name, work in {
        "whole": lambda: identify(config, sets),
        "git": lambda: Git().told(),
        "sources": sources,
        "tasks": lambda: [tree_hash(folder) for folder in folders],
        "starting weights": lambda: folder_hash(resolve(config.model.path)),
        "package versions": lambda: [_version(package) for package in PACKAGES],
        "machine": machine,
    }.items():
        middle, slowest = timed(work)
        print(f"{name:<20}{middle:7.1f} ms, slowest {slowest:.1f} ms")


if __name__ == "__main__":
    main()
