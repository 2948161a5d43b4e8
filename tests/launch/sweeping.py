"""`glm52` with a scripted role in the place of the real ones of every run: sweeping.py ROLE ...

ROLE is Python; its `run` is the run folder. Everything else is real: Hydra, checks, folders,
supervisor, tables. Each start of a run is noted in RUN/starts.
"""

import sys
from pathlib import Path

from glm52_tbench2 import cli
from glm52_tbench2.config.signals import Signals
from glm52_tbench2.launch import train
from glm52_tbench2.launch.roles import RoleSpec

from .scripted import core

PREPARE = """
import os, sys, time
from pathlib import Path
run = Path({run!r})
with (run / "starts").open("a") as file:
    print("start", file=file)
"""


def put(role: str) -> None:
    """Replaces the roles of every run to come."""

    def place(config: object, run_dir: Path) -> list[RoleSpec]:
        return [core(PREPARE.format(run=str(run_dir)) + role)]

    train.place = place  # type: ignore[assignment]
    Signals.open = lambda self: None  # type: ignore[method-assign]  # nothing asks the store


if __name__ == "__main__":
    put(sys.argv[1])
    sys.argv = ["glm52", *sys.argv[2:]]
    sys.exit(cli.main())
