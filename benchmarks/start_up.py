"""Time until each role of the smoke experiment is ready: python benchmarks/start_up.py

Starts every role as `glm52 train experiment=smoke` does, stops when the last gate is passed, and
prints the seconds each took: by the clock, and of CPU, which tells how much of the time was spent
waiting for a core. Its run folder lies in a temporary place and is removed. Overrides may follow.
"""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from glm52_tbench2.config.compose import compose
from glm52_tbench2.launch.placement import place
from glm52_tbench2.launch.roles import RoleProcess, State
from glm52_tbench2.launch.run_folder import create
from glm52_tbench2.launch.supervisor import Supervisor


class StopWhenReady:
    """Stops the run once every gate is passed, and keeps how long each took."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.total_s: float | None = None
        self.cpu_s: dict[str, float] = {}

    def tick(self, roles: Sequence[RoleProcess]) -> None:
        for role in roles:
            if role.spec.name not in self.cpu_s and role.state is State.ready and role.pid:
                self.cpu_s[role.spec.name] = cpu(psutil.Process(role.pid))
        if self.total_s is None and all(role.state is State.ready for role in roles):
            self.total_s = time.monotonic() - self.began
            own = cpu(psutil.Process(), children=False)
            for role in roles:
                print(
                    f"{role.spec.name:<12}{role.ready_s:6.1f} s{self.cpu_s[role.spec.name]:8.1f} s"
                )
            print(f"{'supervisor':<12}{'':8}{own:8.1f} s")
            print(f"{'all':<12}{self.total_s:6.1f} s{sum(self.cpu_s.values()) + own:8.1f} s")
            os.kill(os.getpid(), signal.SIGINT)

    def event(self, text: str) -> None:
        """Prints it, until all are ready."""
        if self.total_s is None:
            print(text)

    def line(self, role: str, text: str) -> None:
        """Nothing follows the logs."""


def cpu(process: psutil.Process, children: bool = True) -> float:
    """Seconds of CPU of a process and, with `children`, of all below it."""
    family = [process, *(process.children(recursive=True) if children else [])]
    return sum(sum(member.cpu_times()[:2]) for member in family)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        config = compose(["experiment=smoke", f"runs_dir={folder}", *sys.argv[1:]])
        run_dir = create(config)
        watcher = StopWhenReady()
        ended = Supervisor(Path(run_dir), place(config, run_dir), watcher, max_restarts=0).run()
        if watcher.total_s is None:
            print(ended.text, file=sys.stderr)
        return 0 if watcher.total_s is not None else 1


if __name__ == "__main__":
    sys.exit(main())
