"""What Slurm says of our jobs, and what we ask of it."""

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from ...config.errors import UserError

_ASK_S = 30.0
ENDED = (
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "DEADLINE",
    "PREEMPTED",
    "BOOT_FAIL",
)


@dataclass(frozen=True)
class JobState:
    job: str
    state: str
    """Slurm's word, as RUNNING; UNKNOWN of a job it has forgotten."""
    reason: str
    """Why it waits or has ended, in Slurm's words; "" if it does not say."""
    nodes: str

    @property
    def live(self) -> bool:
        """Whether it waits, runs or will be queued again."""
        return self.state != "UNKNOWN" and not self.state.startswith(ENDED)


def states(jobs: Sequence[str]) -> dict[str, JobState]:
    """Each job's state. Raises UserError when Slurm does not answer."""
    found = {}
    for job in jobs:
        done = _run(["scontrol", "show", "job", "-o", job])
        facts = dict(re.findall(r"(\w+)=(\S*)", done.stdout)) if done.returncode == 0 else {}
        if done.returncode and "Invalid job id" not in done.stderr:
            raise UserError(f"Slurm does not answer: {done.stderr.strip()}; try again later.")
        reason = facts.get("Reason", "")
        found[job] = JobState(
            job,
            facts.get("JobState", "UNKNOWN"),
            "" if reason == "None" else reason,
            facts.get("NodeList", "").replace("(null)", ""),
        )
    return found


def cancel(job: str) -> None:
    """Ends a job: its supervisors get SIGTERM. Raises UserError with what scancel said."""
    done = _run(["scancel", job])
    if done.returncode:
        raise UserError(f"Job {job} cannot be stopped: {done.stderr.strip()}.")


def _run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{command[0]} does not answer: {error}.") from error
