"""Time until each role of the smoke experiment is ready: python benchmarks/start_up.py

Starts every role as `glm52 train experiment=smoke` does, stops when the last gate is passed, and
prints the seconds each took. Leaves its run folder in a temporary place that it removes.
"""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

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

    def tick(self, roles: Sequence[RoleProcess]) -> None:
        if self.total_s is None and all(role.state is State.ready for role in roles):
            self.total_s = time.monotonic() - self.began
            for role in roles:
                print(f"{role.spec.name:<12}{role.ready_s:6.1f} s")
            print(f"{'all':<12}{self.total_s:6.1f} s")
            os.kill(os.getpid(), signal.SIGINT)

    def event(self, text: str) -> None:
        if self.total_s is None:
            print(text)

    def line(self, role: str, text: str) -> None:
        pass


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
