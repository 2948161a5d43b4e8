"""What `glm52 jobs`, `glm52 logs` and `glm52 stop` do."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from ...analysis.run_files import FINISHED_FILE, HEARTBEAT_FILE
from ...config.compose import recorded_config
from ...config.errors import UserError
from ...config.paths import command, resolve, short
from ..progress import duration
from ..run_numbers import RunNumbers
from .queue import JobState, cancel, states
from .submit import JOBS_FILE, job_ids, output_of

_POLL_S = 1.0
_TAIL = 40


@dataclass(frozen=True)
class Listed:
    """A run's line in the table of jobs."""

    run: str
    job: str
    state: str
    step: str
    reward: str
    heartbeat: str
    """Age of the supervisor's last sign of life."""
    why: str
    """Why it waits, or how it ended; of a paused one, how it goes on."""


def jobs(runs_dir: Path, every: bool) -> int:
    """Prints the newest job of each run below `runs_dir`; the ended ones only if `every`."""
    listed = [one for one, live in _listed(resolve(runs_dir)) if every or live]
    columns = ("run", "job", "state", "step", "reward", "heartbeat", "why")
    console = Console()
    if not listed:
        console.print(f"No job of a run in {runs_dir} {'was queued' if every else 'is live'}.")
    elif not console.is_terminal:
        for row in (columns, *(tuple(vars(one).values()) for one in listed)):
            print(*row, sep="\t")
    else:
        table = Table(*columns)
        for one in listed:
            table.add_row(*vars(one).values())
        console.print(table)
    return 0


def _listed(runs_dir: Path) -> Iterator[tuple[Listed, bool]]:
    paths = sorted([*runs_dir.glob(f"*/{JOBS_FILE}"), *runs_dir.glob(f"*/*/{JOBS_FILE}")])
    run_dirs = [path.parents[1] for path in paths]
    newest = {run_dir: job_ids(run_dir)[-1] for run_dir in run_dirs}
    found = states(list(newest.values()))
    for run_dir, job in newest.items():
        yield _line(run_dir, found[job]), found[job].live


def _line(run_dir: Path, job: JobState) -> Listed:
    config, _ = recorded_config(run_dir)
    numbers = RunNumbers(run_dir, config.steps)
    reward = numbers.latest("driver", "rollout/reward_mean")
    beat = _heartbeat(run_dir)
    age = duration(max(0.0, time.time() - beat["time"])) if "time" in beat else ""
    finished = (run_dir / FINISHED_FILE).exists()
    paused = numbers.paused if job.state == "RUNNING" and not finished else ""
    return Listed(
        short(run_dir),
        job.job,
        "finished" if finished else "paused" if paused else job.state.lower(),
        f"{numbers.trained} of {config.steps}",
        "" if reward is None else f"{reward:.2f}",
        age,
        "" if finished else paused or _why(run_dir, job),
    )


def _why(run_dir: Path, job: JobState) -> str:
    if job.state == "RUNNING":
        return job.nodes
    if job.live:
        return job.reason
    said = output_of(run_dir)
    lines = said.read_text(errors="replace").splitlines() if said and said.exists() else []
    lines = [line for line in lines if line.strip()]
    # srun has the last word, but seldom the reason.
    ours = [line for line in lines if not line.startswith("srun: ")]
    nothing = "it printed nothing; is the run folder on a disk the nodes share?"
    return (ours or lines or [job.reason or nothing])[-1]


def logs(run_dir: Path, role: str | None, follow: bool) -> int:
    """Prints the end of a role's log (none: of what the supervisor says), and what comes to it.

    Raises UserError where there is no such log.
    """
    recorded_config(run_dir)  # or it is no run folder
    path = _log(run_dir, role)
    with path.open(errors="replace") as file:
        print("".join(file.readlines()[-_TAIL:]), end="")
        while follow and not (run_dir / FINISHED_FILE).exists():
            sys.stdout.write(file.read())
            sys.stdout.flush()
            time.sleep(_POLL_S)
        print(file.read(), end="")
    return 0


def _log(run_dir: Path, role: str | None) -> Path:
    known = {path.stem: path for path in sorted((run_dir / "logs").glob("*.log"))}
    if (output := output_of(run_dir)) and output.exists():
        known["job"] = output
    name = role or ("job" if "job" in known else "supervisor")
    if name not in known:
        there = ", ".join(known) or "none yet"
        raise UserError(f"{short(run_dir)} has no log of {name}; it has: {there}.")
    return known[name]


def stop(run_dir: Path) -> int:
    """Stops a run, wherever it runs; it can be resumed. Raises UserError when it does not run."""
    recorded_config(run_dir)  # or it is no run folder
    live = [one for one in states(job_ids(run_dir)).values() if one.live]
    for one in live:
        cancel(one.job)
        print(f"Job {one.job} is told to stop. Go on later with: {command('resume', run_dir)}")
    if live:
        return 0
    pid = _supervisor(run_dir)
    if pid is None:
        raise UserError(f"{short(run_dir)} does not run: there is nothing to stop.")
    os.kill(pid, signal.SIGTERM)
    print(f"Process {pid} is told to stop. Go on later with: {command('resume', run_dir)}")
    return 0


def _supervisor(run_dir: Path) -> int | None:
    """Process id of the run's supervisor on this machine; None when there is none."""
    try:
        pid = int(_heartbeat(run_dir)["pid"])
        lock = str((run_dir / ".lock").resolve())
        ours = any(lock == file.path for file in psutil.Process(pid).open_files())
    except (KeyError, psutil.Error):
        return None
    return pid if ours else None


def _heartbeat(run_dir: Path) -> dict[str, Any]:
    """What the run's supervisor said last; {} where it has said nothing."""
    try:
        return json.loads((run_dir / HEARTBEAT_FILE).read_text())
    except (OSError, ValueError):
        return {}
