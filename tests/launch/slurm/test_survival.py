"""The smoke experiment as a job on three nodes, through all that may happen to a job.

Every part is real. The run that neared its time limit, lost a node, was preempted, cancelled and
resumed must equal, to the bit, the one that a single machine makes without interruption.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from glm52_tbench2.analysis.verify import verify_one, verify_two
from glm52_tbench2.config import metrics_log
from glm52_tbench2.config.identity import load_identity
from glm52_tbench2.launch.slurm.queue import states
from glm52_tbench2.launch.slurm.submit import job_ids, output_of

from .cluster import Cluster

pytestmark = pytest.mark.timeout(1500)
DEADLINE_S = 400.0
# Far more than a fast machine trains while all that happens.
STEPS = 32
RUN = [
    "experiment=smoke",
    f"steps={STEPS}",
    f"eval.every={STEPS}",
    "eval.samples_per_task=1",
    "checkpoint.every=2",
    "rollout.prompts_per_step=2",
    "rollout.samples_per_prompt=4",
]
JOB = [
    "cluster=slurm",
    "cluster.nodes=3",
    "cluster.driver_node=2",
    "cluster.fabric=127.",
    # As on one machine, which is what the result is compared with.
    "cluster.threads_per_trainer=2",
    "cluster.threads_per_engine=1",
]


def glm52(*arguments: str | Path) -> str:
    """What a command prints, which must end with 0."""
    command = [sys.executable, "-m", "glm52_tbench2.cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def wait_until(holds: Callable[[], object], what: str) -> None:
    until = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < until, f"never {what}"
        time.sleep(0.1)


def trained(run_dir: Path) -> int:
    return max(metrics_log.read(run_dir).get("trainer", {0: {}}))


def attempt(run_dir: Path) -> str:
    """Which start of the job leads the run, as JOB.RESTARTS."""
    path = run_dir / "head.json"
    return json.loads(path.read_text())["attempt"] if path.exists() else ""


def processes(run_dir: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(run_dir) in word for word in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run on this machine, without Slurm."""
    runs_dir = tmp_path_factory.mktemp("alone")
    glm52("train", *RUN, f"runs_dir={runs_dir}")
    (run_dir,) = runs_dir.iterdir()
    return run_dir


@pytest.fixture(scope="module")
def survivor(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run as a job that nears its time limit, loses a node, is preempted and cancelled."""
    runs_dir = tmp_path_factory.mktemp("survivor")
    assert "Queued as job" in glm52("train", *RUN, *JOB, f"runs_dir={runs_dir}")
    (run_dir,) = runs_dir.iterdir()
    (job,) = job_ids(run_dir)

    wait_until(lambda: trained(run_dir) >= 1, "trained its first step")
    # Its time is nearly over, as Slurm finds within half a minute.
    cluster.ask("scontrol", "update", f"jobid={job}", "timelimit=2")
    wait_until(lambda: states([job])[job].state == "PENDING", "queued again at its time limit")
    cluster.ask("scontrol", "update", f"jobid={job}", "timelimit=60")
    wait_until(lambda: attempt(run_dir) == f"{job}.1", "started again after the warning")
    warned_at = trained(run_dir)
    assert (run_dir / f"checkpoints/step_{warned_at:06d}/STABLE").exists()

    wait_until(lambda: trained(run_dir) >= warned_at + 1, "went on after the warning")
    lost = states([job])[job].nodes
    assert lost == "n[1-3]"
    cluster.kill_node(2)
    # What Slurm finds out by itself, half a minute later.
    cluster.ask("scontrol", "update", "nodename=n2", "state=down", "reason=killed")
    wait_until(lambda: attempt(run_dir) == f"{job}.2", "queued again after a node was lost")
    assert states([job])[job].nodes == "n[1,3-4]"
    cluster.start_node(2)
    cluster.ask("scontrol", "update", "nodename=n2", "state=resume")

    before = trained(run_dir)
    wait_until(lambda: trained(run_dir) > before, "went on without the node")
    cluster.ask(
        "sbatch", "--partition=urgent", "--nodes=4", "--exclusive", "--output=/dev/null",
        "--wrap=sleep 1",
    )  # fmt: skip
    wait_until(lambda: attempt(run_dir) == f"{job}.3", "queued again after it was preempted")

    before = trained(run_dir)
    wait_until(lambda: trained(run_dir) > before, "went on after it was preempted")
    assert f"Job {job} is told to stop" in glm52("stop", run_dir)
    wait_until(lambda: not processes(run_dir), "free of processes")
    wait_until(lambda: states([job])[job].state == "CANCELLED", "cancelled")

    assert "will go on after step" in glm52("resume", run_dir)
    wait_until(lambda: (run_dir / "finished").exists(), "finished")
    wait_until(lambda: not states(job_ids(run_dir))[job_ids(run_dir)[-1]].live, "done with its job")
    return run_dir


def test_a_job_survives_whatever_happens_to_it(survivor: Path) -> None:
    assert verify_one(survivor) == 0
    assert len(job_ids(survivor)) == 2
    assert states(job_ids(survivor))[job_ids(survivor)[-1]].state == "COMPLETED"
    assert processes(survivor) == []


def test_it_equals_the_uninterrupted_run_of_one_machine_to_the_bit(
    survivor: Path, alone: Path
) -> None:
    assert verify_two(alone, survivor) == 0


def test_it_is_the_same_run_all_along(survivor: Path) -> None:
    _, history = load_identity(survivor)
    assert history == []


def test_roles_were_spread_over_the_nodes(survivor: Path) -> None:
    heartbeat = json.loads((survivor / "heartbeat.json").read_text())
    assert set(heartbeat["nodes"]) == {"1", "2"}
    assert {"trainer-0", "engine-0", "driver", "env"} <= heartbeat["roles"].keys()
    output = output_of(survivor)
    assert output is not None and f"step {STEPS} of {STEPS}" in output.read_text()


def test_nothing_listens_beyond_the_loopback(cluster: Cluster) -> None:
    daemons = [p for p in psutil.process_iter() if p.name() in ("slurmctld", "slurmd")]
    addresses = [
        c.laddr.ip
        for p in daemons
        for c in p.net_connections("inet")
        if c.status == psutil.CONN_LISTEN
    ]
    assert len(addresses) >= 5
    assert set(addresses) == {"127.0.0.1"}


def test_a_cancelled_job_leaves_nothing_anywhere(cluster: Cluster, tmp_path: Path) -> None:
    glm52("train", *RUN, *JOB, f"runs_dir={tmp_path}")
    (run_dir,) = tmp_path.iterdir()
    wait_until(lambda: (run_dir / "logs" / "supervisor.log").exists(), "supervised")
    cluster.ask("scancel", "--signal=TERM", job_ids(run_dir)[0])
    wait_until(lambda: not processes(run_dir), "free of processes")
    job = job_ids(run_dir)[0]
    wait_until(lambda: not states([job])[job].live, "ended")
    assert signal.SIGTERM.name in output_of(run_dir).read_text()  # type: ignore[union-attr]
