"""What runs on each node of a job: that node's supervisor."""

import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from submitit.helpers import DelayedSubmission

from ...config.compose import load_run_config
from ...config.errors import UserError
from ...config.fabric import fabric_address
from ...config.schema import RunConfig
from .. import preflight
from ..peers import Peers
from ..placement import place
from ..progress import Silent, shown
from ..run_folder import lock, open_for_resume
from ..supervisor import FINISHED_FILE, USER_ERROR, Ended, Supervisor, Watcher


class Job:
    """A run as a job: called on every node, again at each requeue, which resumes the run.

    What there is to go on from lies in the run folder, never in submitit's files.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir

    def __call__(self) -> None:
        """Runs this node's part of the job, and exits with the job's code."""
        sys.exit(run_node(self.run_dir))

    def checkpoint(self) -> DelayedSubmission:
        """submitit: the job is warned before its supervisor listens."""
        return DelayedSubmission(self)


def run_node(run_dir: Path) -> int:
    """This node's part of a run, to the end; the exit code.

    A member that did as the head says, or was stopped, returns 0: the head's code is the job's, and
    srun ends a job at the first task that fails, without a grace.
    """
    node, count = int(os.environ["SLURM_NODEID"]), int(os.environ["SLURM_NNODES"])
    job, restarts = os.environ["SLURM_JOB_ID"], int(os.environ.get("SLURM_RESTART_COUNT", 0))
    if (run_dir / FINISHED_FILE).exists():
        print(f"{run_dir} is finished: there is nothing left to do.")
        return 0
    peers = Peers(run_dir, node, count, f"{job}.{restarts}")
    try:
        if not peers.head:
            config = load_run_config(run_dir)
            ended = _supervise(run_dir, config, peers, Silent())
            return 0 if ended.ordered or ended.stopped else 1
        peers.take_over()
        with lock(run_dir) as lock_fd:
            config = open_for_resume(run_dir, allow=False)
            with shown(run_dir, config.steps, Console()) as watcher:
                ended = _supervise(run_dir, config, peers, watcher, lock_fd)
    except UserError as error:
        print(error, file=sys.stderr)
        return USER_ERROR
    print(ended.text)
    if ended.again and restarts < config.cluster.slurm.max_requeues:
        print(f"Queued again: requeue {restarts + 1} of {config.cluster.slurm.max_requeues}.")
        subprocess.run(["scontrol", "requeue", job], check=True, timeout=60)
    return ended.code


def _supervise(
    run_dir: Path,
    config: RunConfig,
    peers: Peers,
    watcher: Watcher,
    lock_fd: int | None = None,
) -> Ended:
    host, _ = fabric_address(config.cluster.fabric)
    return Supervisor(
        run_dir,
        place(config, run_dir),
        watcher,
        max_restarts=config.cluster.max_restarts,
        host=host,
        peers=peers,
        lock_fd=lock_fd,
        refused="\n".join(preflight.node_problems(config, peers.node)),
        # The rest of the warning is for the roles to end and the queue to be told.
        warning_s=max(config.cluster.slurm.warning_s - 30.0, 0.5 * config.cluster.slurm.warning_s),
    ).run()
