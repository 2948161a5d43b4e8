"""What runs on each node of a job: that node's supervisor."""

import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from submitit.helpers import DelayedSubmission

from ...analysis.run_files import FINISHED_FILE
from ...config.compose import load_run_config
from ...config.errors import UserError
from ...config.fabric import fabric_address
from ...config.paths import command
from ...config.schema import RunConfig
from .. import preflight
from ..peers import Peers
from ..placement import place
from ..progress import Silent, shown
from ..run_folder import lock, open_for_resume
from ..supervisor import USER_ERROR, Ended, Supervisor, Watcher


class Job:
    """A run as a job: called on every node, again at each requeue, which resumes the run.

    What there is to go on from lies in the run folder, never in submitit's files.
    """

    def __init__(self, run_dir: Path, allow: bool = False) -> None:
        """`allow`: its first start may go on under another identity, as only a node may find."""
        self.run_dir, self.allow = run_dir, allow

    def __call__(self) -> None:
        """Runs this node's part of the job, and exits with the job's code."""
        sys.exit(run_node(self.run_dir, self.allow))

    def checkpoint(self) -> DelayedSubmission:
        """submitit: the job is warned before its supervisor listens."""
        return DelayedSubmission(self)


def run_node(run_dir: Path, allow: bool = False) -> int:
    """This node's part of a run, to the end; the exit code. `allow`: see :class:`Job`.

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
            # A requeue may find what nobody has allowed.
            config = open_for_resume(run_dir, allow and not restarts, on_node=True)
            with shown(run_dir, config.steps, Console()) as watcher:
                ended = _supervise(run_dir, config, peers, watcher, lock_fd)
    except UserError as error:
        print(error, file=sys.stderr)
        return USER_ERROR
    print(ended.text)
    if ended.again:
        _requeue(run_dir, job, restarts, config.cluster.slurm.max_requeues)
    return ended.code


def _requeue(run_dir: Path, job: str, restarts: int, most: int) -> None:
    """Queues the job again, which ends it here, or says why not and how to go on."""
    go_on = f"go on with: {command('resume', run_dir)}"
    if restarts >= most:
        print(f"Its requeues, cluster.slurm.max_requeues={most}, are used up; {go_on}")
        return
    print(f"To be queued again: requeue {restarts + 1} of {most}.")
    try:
        subprocess.run(["scontrol", "requeue", job], check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"The job could not be queued again ({error}); {go_on}")


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
