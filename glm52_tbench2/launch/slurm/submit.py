"""From run folders to a queued job, through submitit.

One task a node, which runs that node's supervisor. A sweep is one array.
"""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from submitit import SlurmExecutor
from submitit.core.utils import FailedJobError, FailedSubmissionError

from ...config.errors import UserError
from ...config.files import atomic_write_bytes
from ...config.schema import RunConfig
from .job import Job

JOBS_FILE = "slurm/jobs.json"
T = TypeVar("T")


class _Executor(SlurmExecutor):
    @classmethod
    def affinity(cls) -> int:
        return 2  # submitit would refuse to write a script where there is no Slurm


def submit(
    run_dirs: Sequence[Path], config: RunConfig, folder: Path, allow: bool = False
) -> list[str]:
    """Queues a job for each run folder, as an array where there are several; their ids.

    Args:
        config: whose cluster settings the jobs get.
        folder: for submitit's files and the jobs' output, on the shared disk.
        allow: see :class:`.job.Job`.

    Raises UserError with what sbatch said.
    """
    executor = _executor(config, folder)
    try:
        with executor.batch():
            jobs = [executor.submit(Job(run_dir, allow)) for run_dir in run_dirs]
    except (FailedJobError, FailedSubmissionError) as error:
        said = [*str(error).strip().splitlines(), "it did not say why"][0]
        raise UserError(f"sbatch refused the job: {said}; nothing of it is queued.") from error
    ids = [str(job.job_id) for job in jobs]
    for run_dir, job_id in zip(run_dirs, ids, strict=True):
        _remember(run_dir, job_id, folder)
    return ids


def arrays(configs: Mapping[T, RunConfig]) -> list[list[T]]:
    """Groups runs that may share an array: those of the same batch script."""
    kinds: dict[str, list[T]] = {}
    for run, config in configs.items():
        kinds.setdefault(script(config, Path("slurm")), []).append(run)
    return list(kinds.values())


def script(config: RunConfig, folder: Path, runs: int = 1) -> str:
    """The batch script that :func:`submit` hands to sbatch for so many runs."""
    executor = _executor(config, folder)
    if runs > 1:
        executor.parameters["map_count"] = runs
    return executor._make_submission_file_text(executor._submitit_command_str, "")


def job_ids(run_dir: Path) -> list[str]:
    """Every job that was queued for a run, the newest last."""
    return [entry["job"] for entry in _remembered(run_dir)]


def output_of(run_dir: Path) -> Path | None:
    """What the newest job printed on its head node; None before the first job."""
    entries = _remembered(run_dir)
    if not entries:
        return None
    return Path(entries[-1]["folder"]) / f"{entries[-1]['job']}_0_log.out"


def _executor(config: RunConfig, folder: Path) -> SlurmExecutor:
    executor = _Executor(folder, python=config.cluster.slurm.python)
    executor.update_parameters(**_parameters(config))
    return executor


def _parameters(config: RunConfig) -> dict[str, Any]:
    cluster, slurm = config.cluster, config.cluster.slurm
    container = []
    if slurm.container_image is not None:
        container.append(f"--container-image={slurm.container_image}")
    if slurm.container_mounts:
        container.append(f"--container-mounts={','.join(slurm.container_mounts)}")
    wanted = {
        "job_name": config.name,
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "comment": slurm.comment,
        "time": slurm.time_min,
        "nodes": cluster.nodes,
        "ntasks_per_node": 1,
        "cpus_per_task": slurm.cpus_per_node,
        "gpus_per_node": cluster.gpus_per_node or None,
        "mem": None if slurm.memory_gb is None else f"{slurm.memory_gb * 1024:.0f}M",
        "exclusive": slurm.exclusive or None,
        "signal_delay_s": slurm.warning_s,
        "setup": slurm.setup or None,
        "array_parallelism": slurm.max_parallel,
        "stderr_to_stdout": True,
        # A node that fails must not leave the others waiting.
        "srun_args": ["--kill-on-bad-exit=1", *container],
        "additional_parameters": {
            "requeue": True,
            **({} if slurm.reservation is None else {"reservation": slurm.reservation}),
            **slurm.extra,
        },
    }
    return {name: value for name, value in wanted.items() if value is not None}


def _remembered(run_dir: Path) -> list[dict[str, Any]]:
    path = run_dir / JOBS_FILE
    return json.loads(path.read_text()) if path.exists() else []


def _remember(run_dir: Path, job_id: str, folder: Path) -> None:
    entry = {"job": job_id, "time": time.time(), "folder": str(folder)}
    content = [*_remembered(run_dir), entry]
    atomic_write_bytes(run_dir / JOBS_FILE, json.dumps(content, indent=1).encode())
