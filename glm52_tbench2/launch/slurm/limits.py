"""Whether the cluster can give what a job asks for: the request against its partition."""

import re
import shutil
import subprocess
from dataclasses import dataclass

from ...config.once import fact
from ...config.paths import command
from ...config.schema import RunConfig

_ASK_S = 20.0


@dataclass(frozen=True)
class Partition:
    """What Slurm says of a partition, nodes of the same kind together."""

    name: str
    default: bool
    up: bool
    limit_min: float
    """Longest job, minutes; inf where there is no limit."""
    kinds: tuple[tuple[int, int, int, int], ...]
    """(nodes, CPUs a node, MiB a node, GPUs a node) of each kind."""

    @property
    def nodes(self) -> int:
        return sum(kind[0] for kind in self.kinds)


def cluster_problems(config: RunConfig) -> list[str]:
    """Each reason why the job could not start, with its mend; empty: none."""
    if shutil.which("sbatch") is None:
        return [
            "This configuration runs under Slurm, and there is none here (sbatch is not found); "
            f"on one machine write: {command('train', 'experiment=smoke')}"
        ]
    try:
        partitions = ask_partitions()
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        return [f"Slurm does not answer (sinfo: {said.strip().splitlines()[-1]}); try again later."]
    name = config.cluster.slurm.partition
    chosen = [p for p in partitions if (p.default if name is None else p.name == name)]
    if not chosen:
        known = ", ".join(p.name for p in partitions) or "none"
        what = f"is '{name}', which is unknown" if name else "is not set, and there is no default"
        return [f"cluster.slurm.partition {what}; write one of: {known}."]
    return request_problems(config, chosen[0])


def request_problems(config: RunConfig, partition: Partition) -> list[str]:
    """What of a request a partition cannot give."""
    cluster, slurm, name = config.cluster, config.cluster.slurm, partition.name
    found = []
    if not partition.up:
        found.append(
            f"Partition {name} takes no jobs now; write cluster.slurm.partition=ANOTHER, or wait."
        )
    if slurm.time_min > partition.limit_min:
        found.append(
            f"cluster.slurm.time_min is {slurm.time_min}, above the limit of partition {name}; "
            f"write at most {partition.limit_min:g}: the run goes on in the next job."
        )
    fitting = sum(
        count
        for count, cpus, memory_mb, gpus in partition.kinds
        if cpus >= (slurm.cpus_per_node or 1)
        and memory_mb >= (slurm.memory_gb or 0) * 1024
        and gpus >= cluster.gpus_per_node
    )
    if partition.nodes < cluster.nodes:
        found.append(
            f"cluster.nodes is {cluster.nodes}, but partition {name} has {partition.nodes}; "
            "lower it, or write cluster.slurm.partition=ANOTHER."
        )
    elif fitting < cluster.nodes:
        asked = f"{cluster.gpus_per_node} GPUs"
        asked += f", {slurm.cpus_per_node} CPUs" if slurm.cpus_per_node else ""
        asked += f", {slurm.memory_gb:g} GiB" if slurm.memory_gb else ""
        found.append(
            f"Only {fitting} nodes of partition {name} have {asked}, and cluster.nodes is "
            f"{cluster.nodes}; lower cluster.gpus_per_node, cluster.slurm.cpus_per_node or "
            "cluster.slurm.memory_gb."
        )
    return found


@fact
def ask_partitions() -> list[Partition]:
    """Every partition that Slurm shows us. Raises OSError, subprocess.SubprocessError."""
    done = subprocess.run(
        ["sinfo", "-h", "-o", "%P|%a|%l|%D|%c|%m|%G"],
        capture_output=True,
        text=True,
        timeout=_ASK_S,
        check=True,
    )
    return read_partitions(done.stdout)


def read_partitions(text: str) -> list[Partition]:
    """From sinfo's lines partition|state|limit|nodes|cpus|memory|gres."""
    found: dict[str, Partition] = {}
    for line in text.splitlines():
        name, state, limit, nodes, cpus, memory, gres = line.split("|")
        kind = (int(nodes), _number(cpus), _number(memory), _gpus(gres))
        key = name.rstrip("*")
        before = found[key].kinds if key in found else ()
        found[key] = Partition(
            key, name.endswith("*"), state == "up", _minutes(limit), (*before, kind)
        )
    return list(found.values())


def _number(text: str) -> int:
    """Of "64" or "64+", which is how sinfo tells the least of several kinds."""
    return int(re.sub(r"\D.*", "", text) or 0)


def _gpus(gres: str) -> int:
    """Of "gpu:h200:4(S:0-1),..." the number of GPUs."""
    return sum(int(n) for n in re.findall(r"(?:^|,)gpu:(?:[^:,()]+:)?(\d+)", gres))


def _minutes(limit: str) -> float:
    """Of Slurm's [DAYS-]HOURS:MINUTES:SECONDS, MINUTES:SECONDS or infinite."""
    if limit in ("infinite", "n/a"):
        return float("inf")
    days, _, clock = limit.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    hours, minutes, seconds = [0] * (3 - len(parts)) + parts
    return int(days or 0) * 1440 + hours * 60 + minutes + seconds / 60
