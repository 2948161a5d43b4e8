"""Writes anew what every composition resolves to, and the jobs of some: make golden.

Review the difference in git.
"""

import sys
from pathlib import Path

from glm52_tbench2.config.compose import compose, to_yaml
from glm52_tbench2.config.paths import CONF, ROOT
from glm52_tbench2.launch.slurm.train import described

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
}
"""Golden job -> overrides."""


def job(overrides: list[str]) -> str:
    """What --dry-run shows, without this machine's paths."""
    text = described(compose(overrides))
    return text.replace(sys.executable, "PYTHON").replace(str(ROOT), "ROOT")


def main() -> None:
    for path in [*FOLDER.glob("*.yaml"), *FOLDER.glob("*.sh")]:
        path.unlink()
    for name, overrides in COMPOSITIONS.items():
        (FOLDER / f"{name}.yaml").write_text(to_yaml(compose(overrides)))
    for name, overrides in JOBS.items():
        (FOLDER / f"{name}.sh").write_text(job(overrides))


if __name__ == "__main__":
    main()
