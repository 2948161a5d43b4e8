"""Cost of Slurm's side: python benchmarks/slurm.py

Starts a Slurm of four nodes on this machine, as the tests do (root, slurm-wlm), and times queuing a
run that is composed, checking and queuing a sweep of 64 points, and what lies between a job's
requeue and its first step.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from glm52_tbench2.config import metrics_log
from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.paths import ROOT
from glm52_tbench2.launch.slurm.submit import job_ids
from glm52_tbench2.launch.train import train

sys.path.insert(0, str(ROOT / "tests" / "launch" / "slurm"))
from cluster import Cluster  # type: ignore[import-not-found]

JOB = ["experiment=smoke", "cluster=slurm", "cluster.fabric=127.", "eval.every=1000"]
NOTHING = "cluster.slurm.setup=[exit 0]"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder) / "slurm")
        os.environ["SLURM_CONF"] = cluster.env["SLURM_CONF"]
        cluster.start()
        try:
            submit(Path(folder) / "one")
            sweep(Path(folder) / "sweep")
            requeue(cluster, Path(folder) / "requeued")
        finally:
            cluster.stop()


def submit(runs_dir: Path) -> None:
    config = compose([*JOB, NOTHING, f"runs_dir={runs_dir}"])
    began = time.perf_counter()
    train(config)
    print(f"{'checked and queued, once composed':<44}{time.perf_counter() - began:8.2f} s")


def sweep(runs_dir: Path) -> None:
    points = f"seed={','.join(map(str, range(1, 65)))}"
    command = [sys.executable, "-m", "glm52_tbench2.cli", "train", "-m", *JOB, NOTHING, points]
    began = time.perf_counter()
    subprocess.run([*command, f"runs_dir={runs_dir}"], check=True, stdout=subprocess.DEVNULL)
    print(
        f"{'64 points checked and queued, whole process':<44}{time.perf_counter() - began:8.2f} s"
    )


def requeue(cluster: Cluster, runs_dir: Path) -> None:
    """From the warning to the first step after it, and the parts of that."""
    train(compose([*JOB, "steps=50", "rollout.prompts_per_step=2", f"runs_dir={runs_dir}"]))
    (run_dir,) = runs_dir.iterdir()
    wait(lambda: trained(run_dir) >= 1)
    warned, step = time.time(), trained(run_dir)
    cluster.ask("scancel", "--signal=USR2", job_ids(run_dir)[0])
    wait(lambda: head(run_dir).endswith(".1"))
    started = time.time()
    wait(lambda: trained(run_dir) > step + 1)
    at = {n: record.time for n, record in metrics_log.records(run_dir)["trainer"].items()}
    first = min(when for n, when in at.items() if when > started)
    log = (run_dir / "logs" / "supervisor.log").read_text().splitlines()
    ready = time.mktime(time.strptime(max(x for x in log if " ready " in x)[:19], "%Y-%m-%d %X"))
    for name, seconds in (
        ("warning to the requeued job's start", started - warned),
        ("its start to the last role ready", ready - started),
        ("ready to the first step", first - ready),
        ("warning to the first step", first - warned),
    ):
        print(f"{name:<44}{seconds:8.1f} s")


def trained(run_dir: Path) -> int:
    return max(metrics_log.read(run_dir).get("trainer", {0: {}}))


def head(run_dir: Path) -> str:
    path = run_dir / "head.json"
    return json.loads(path.read_text())["attempt"] if path.exists() else ""


def wait(holds) -> None:  # type: ignore[no-untyped-def]
    until = time.monotonic() + 300
    while not holds():
        if time.monotonic() > until:
            sys.exit("the run does not get on; see its logs")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
