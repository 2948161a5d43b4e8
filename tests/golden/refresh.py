"""Writes anew what every composition resolves to, and the jobs of some: make golden.

Review the difference in git.
"""

import io
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from glm52_tbench2.cli import main as glm52
from glm52_tbench2.config.compose import compose, to_yaml
from glm52_tbench2.config.paths import CONF, ROOT

FOLDER = Path(__file__).parent
COMPOSITIONS = {
    "reference": [],
    **{
        path.stem: [f"experiment={path.stem}"]
        for path in sorted((CONF / "experiment").glob("*.yaml"))
    },
}
"""Golden file -> overrides."""
JOBS = {
    "reference": [],
    "low_latency": ["engine=low_latency"],
    "three_nodes": [
        "experiment=smoke",
        "cluster=slurm",
        "cluster.nodes=3",
        "cluster.driver_node=2",
        "cluster.slurm.partition=batch",
        "cluster.slurm.account=lab",
        "cluster.slurm.qos=high",
        "cluster.slurm.reservation=week",
        "cluster.slurm.constraint=cpu",
        "cluster.slurm.cpus_per_node=8",
        "cluster.slurm.memory_gb=24",
        "cluster.slurm.comment=a trial",
        "+cluster.slurm.extra.mail-type=END",
        "cluster.slurm.setup=[module load gcc]",
        "cluster.slurm.container_image=/images/glm52.sqsh",
        "cluster.slurm.container_mounts=['/data:/data','/scratch:/scratch']",
    ],
    "sweep": [
        "-m",
        "experiment=smoke",
        "cluster=slurm",
        "hydra.sweep.dir=runs/trial",
        "seed=1,2",
        "cluster.nodes=2,3",
        "cluster.driver_node=0,1",
    ],
    "local_sweep": [
        "-m",
        "experiment=smoke",
        "hydra.sweep.dir=runs/trial",
        "data=mini8,mini69",
        "seed=1,2",
    ],
}
"""Golden job -> overrides."""


def job(overrides: list[str]) -> str:
    """What --dry-run shows, without this machine's paths and the identities of its code."""
    out = io.StringIO()
    # What stands in the way here is told on stderr.
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        glm52(["train", "--dry-run", *overrides])
    text = out.getvalue().replace(sys.executable, "PYTHON").replace(str(ROOT), "ROOT")
    return re.sub(r"\b[0-9a-f]{16}\b", "IDENTITY", text)


def main() -> None:
    for path in [*FOLDER.glob("*.yaml"), *FOLDER.glob("*.sh")]:
        path.unlink()
    for name, overrides in COMPOSITIONS.items():
        (FOLDER / f"{name}.yaml").write_text(to_yaml(compose(overrides)))
    for name, overrides in JOBS.items():
        (FOLDER / f"{name}.sh").write_text(job(overrides))


if __name__ == "__main__":
    main()
