"""Where a step's time goes: python benchmarks/step_split.py [OVERRIDE ...]

Runs experiment=smoke for 24 steps without an evaluation (with overrides, if any) in a scratch
folder and prints the median of each part of a step, and how busy each role kept its processors
between steps 4 and 16: in rollout.mode=fully_async the last batches are generated long before
they are trained. The engine is busy while it has a request: it is asked four times a second.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from statistics import median

import psutil

from glm52_tbench2.config import metrics_log

STEPS, FIRST, LAST = 24, 4, 16
PARTS = {
    "time/train_step": "whole step",
    "time/rollout_s": "  rollout",
    "time/train_compute": "  training",
    "time/train_push": "  weights to the engine",
    "time/train_checkpoint": "checkpoint (every 4, beside the next rollout)",
}


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        overrides = [f"steps={STEPS}", "eval.every=1000", f"runs_dir={scratch}", *sys.argv[1:]]
        command = [sys.executable, "-m", "glm52_tbench2.cli", "train", "experiment=smoke"]
        run = psutil.Popen([*command, *overrides], stdout=subprocess.DEVNULL)
        folder = wait_for(run, Path(scratch), FIRST)
        before, began = cpu_seconds(run), time.perf_counter()
        load = Load(run)
        load.start()
        wait_for(run, Path(scratch), LAST)
        load.over.set()
        wall, after = time.perf_counter() - began, cpu_seconds(run)
        print(f"{3600 * (LAST - FIRST) / wall:.0f} steps an hour")
        if run.wait() != 0:
            sys.exit(f"the run failed with exit code {run.returncode}")
        told(folder)
    print(f"{'engine busy':<46}{load.busy / load.asked:8.0%}   requests on average {load.mean:.0f}")
    print(f"\nCPU seconds a wall second, over {wall:.0f} s of steps")
    for role, used in after.items():
        print(f"{role:<46}{(used - before.get(role, 0.0)) / wall:8.2f}")


class Load(threading.Thread):
    """Asks the engine how many requests it has, until `over`."""

    def __init__(self, run: psutil.Popen) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.asked = self.busy = self.requests = 0
        lines = [process.cmdline() for process in run.children(recursive=True)]
        (line,) = [
            one for one in lines if "sglang.launch_server" in one and "guard.py" not in one[3]
        ]
        self._url = f"http://127.0.0.1:{line[line.index('--port') + 1]}/v1/loads"

    def run(self) -> None:
        while not self.over.wait(0.25):
            with urllib.request.urlopen(self._url, timeout=10) as answer:
                (load,) = json.load(answer)["loads"]
            found = load["num_running_reqs"] + load["num_waiting_reqs"]
            self.asked += 1
            self.busy += found > 0
            self.requests += found

    @property
    def mean(self) -> float:
        """Requests at one time."""
        return self.requests / max(1, self.asked)


def wait_for(run: psutil.Popen, runs: Path, step: int) -> Path:
    """The run's folder, once `step` is trained."""
    while run.poll() is None:
        for folder in runs.iterdir():
            if step in metrics_log.read(folder).get("trainer", {}):
                return folder
        time.sleep(0.05)
    sys.exit(f"the run ended with exit code {run.returncode} before step {step}")


def cpu_seconds(run: psutil.Popen) -> dict[str, float]:
    """Role -> CPU time of its processes that are alive."""
    found: dict[str, float] = {}
    for process in run.children(recursive=True):
        try:
            line, times = " ".join(process.cmdline()), process.cpu_times()
        except psutil.Error:
            continue
        names = {"sglang": "engine", "trainer": "trainer", "rollout": "driver", "envs": "env"}
        role = next((name for word, name in names.items() if word in line), None)
        if role:
            found[role] = found.get(role, 0.0) + times.user + times.system
    return found


def told(folder: Path) -> None:
    """Prints the medians over the steps between FIRST and LAST."""
    log = metrics_log.read(folder)
    for name, words in PARTS.items():
        values = [
            values[name]
            for steps in log.values()
            for step, values in steps.items()
            if name in values and FIRST < step <= LAST
        ]
        print(f"{words:<46}{median(values):8.2f} s   median of {len(values)}")
    rollout = [log["driver"][step]["time/rollout_s"] for step in range(FIRST + 1, LAST + 1)]
    whole = [log["trainer"][step]["time/train_step"] for step in range(FIRST + 1, LAST + 1)]
    print(f"{'rollout, of the whole':<46}{sum(rollout) / sum(whole):8.0%}")


if __name__ == "__main__":
    main()
