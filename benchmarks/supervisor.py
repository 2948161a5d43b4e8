"""CPU share of a supervisor and its guards: python benchmarks/supervisor.py [SECONDS]

Supervises roles that sleep, with the live view on a terminal of its own, while metrics arrive as
from a fast small run: a step every two seconds. Target: at most 1 % of one core.
"""

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from rich.console import Console

from glm52_tbench2.config import metrics_log
from glm52_tbench2.launch.progress import LiveProgress
from glm52_tbench2.launch.roles import Policy, RoleProcess, RoleSpec
from glm52_tbench2.launch.run_numbers import RunNumbers
from glm52_tbench2.launch.supervisor import Supervisor

STEP_S = 2.0


def specs(seconds: float) -> list[RoleSpec]:
    """The smoke experiment's five roles, all asleep."""
    asleep = (sys.executable, "-c", "import time; time.sleep(100000)")
    ends = (sys.executable, "-c", f"import time; time.sleep({seconds})")
    kinds = (
        ("env", Policy.service, asleep),
        ("engine", Policy.service, asleep),
        ("driver", Policy.core, ends),
        ("trainer", Policy.core, ends),
        ("tracker", Policy.service, asleep),
    )
    return [RoleSpec(role, 0, command, policy) for role, policy, command in kinds]


class Measured(LiveProgress):
    """The live view, which also takes the CPU time of the settled supervisor."""

    settled: tuple[float, float] | None = None
    guards: list[psutil.Process] = []  # noqa: RUF012 one instance
    guards_s = 0.0
    share: float | None = None

    def tick(self, roles: Sequence[RoleProcess]) -> None:
        super().tick(roles)
        now, used = time.monotonic(), time.process_time()
        if self.settled is None:
            if now - self._began > 5:
                self.settled = now, used
                self.guards = [psutil.Process(role.pid) for role in roles if role.pid]
                self.guards_s = cpu(self.guards)
        elif all(guard.is_running() for guard in self.guards):
            elapsed = now - self.settled[0]
            if elapsed > 1:
                spent = used - self.settled[1] + cpu(self.guards) - self.guards_s
                self.share = spent / elapsed


def cpu(processes: Sequence[psutil.Process]) -> float:
    """Seconds of CPU that the processes themselves took."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def write_metrics(run_dir: Path, stop: threading.Event) -> None:
    step = 0
    while not stop.wait(STEP_S):
        step += 1
        driver = {
            "rollout/reward_mean": 0.4,
            "rollout/truncated_share": 0.1,
            "rollout/tokens_per_s": 500.0,
        }
        metrics_log.append(run_dir, step, "driver", driver)
        metrics_log.append(run_dir, step, "trainer", {"trainer/train_rollout_kl": 0.01})
        progress = {"phase": "generate", "step": step, "samples_done": 3, "samples_total": 32}
        (run_dir / "progress.json").write_text(json.dumps({**progress, "time": time.time()}))


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as terminal:
        run_dir = Path(folder)
        console = Console(file=terminal, force_terminal=True, width=100)
        stop = threading.Event()
        writer = threading.Thread(target=write_metrics, args=(run_dir, stop))
        writer.start()
        with Measured(RunNumbers(run_dir, 1000), console, "benchmark") as watcher:
            Supervisor(run_dir, specs(seconds + 8), watcher, max_restarts=0).run()
        stop.set()
        writer.join()
        if watcher.share is None:
            return 1
        memory = psutil.Process().memory_info().rss / 2**20
        print(f"supervisor and guards: {watcher.share:.2%} of a core, supervisor {memory:.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
