"""What `glm52 train` and `glm52 resume` do under Slurm: queue a job, and return."""

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ...analysis.run_files import FINISHED_FILE
from ...analysis.sweep_files import SweepFiles, SweepPoint
from ...config.compose import load_run_config
from ...config.errors import UserError
from ...config.once import looked_up_once
from ...config.paths import command, short
from ...config.schema import RunConfig
from ...config.words import counted
from .. import preflight
from ..progress import shown
from ..run_folder import create, last_checkpoint, open_for_resume
from .queue import states
from .submit import arrays, job_ids, output_of, submit

_POLL_S = 2.0


def train(config: RunConfig, origin: dict[str, Any] | None = None) -> int:
    """Queues a new run. Returns 0, or with cluster.slurm.wait what the run ends with.

    Raises UserError, before anything is made, with all that stands in the way.
    """
    preflight.check(config)
    run_dir = create(config, origin)
    try:
        _queue(run_dir, config)
    except UserError:
        shutil.rmtree(run_dir)  # nothing of it was queued
        raise
    return _awaited(run_dir, config)


def resume(run_dir: Path, allow: bool) -> int:
    """Queues a job that goes on with a run; as :func:`train`.

    `allow`: also under another identity, which the job records when it starts. Raises UserError
    while a job of the run waits or runs, and with all that stands in the way.
    """
    run_dir = run_dir.resolve()
    config = load_run_config(run_dir)
    if job := _live(run_dir):
        raise UserError(
            f"{short(run_dir)} has a job already, {job}; see {command('jobs')}, or end it "
            f"first with: {command('stop', run_dir)}"
        )
    preflight.check(config)
    open_for_resume(run_dir, allow)
    step = last_checkpoint(run_dir)
    print(f"{short(run_dir)} will go on {f'after step {step}' if step else 'from its start'}.")
    _queue(run_dir, config, allow)
    return _awaited(run_dir, config)


def queue_sweep(sweep_dir: Path, points: Mapping[Path, RunConfig], allow: bool = False) -> None:
    """Queues runs of a sweep, those that ask for the same job as one array.

    `allow`: see :class:`.job.Job`. Raises UserError with what sbatch said, the jobs queued before
    it, which stay queued, and how to queue the rest.
    """
    ids: list[str] = []
    rest = command("sweep", "resume", sweep_dir)
    for run_dirs in arrays(points):
        try:
            jobs = submit(run_dirs, points[run_dirs[0]], sweep_dir / "slurm", allow)
        except UserError as error:
            before = f" Jobs queued before it: {', '.join(ids)}." if ids else ""
            raise UserError(f"{error}{before} Queue what is missing with: {rest}") from error
        ids.append(jobs[0].partition("_")[0])  # Slurm takes an array's id for all of its points
    print(
        f"Queued {counted(len(points), 'point')} as job{'s' * (len(ids) > 1)} {', '.join(ids)}: "
        f"{short(sweep_dir)}\n"
        f"  see     {command('jobs')}\n"
        f"  table   {command('sweep', 'table', sweep_dir)}\n"
        f"  stop    scancel {' '.join(ids)}\n"
        f"  resume  {rest}"
    )


@looked_up_once()
def resume_sweep(sweep: SweepFiles, points: Sequence[SweepPoint], allow: bool) -> None:
    """Queues the points that have no job; as :func:`queue_sweep`. Raises UserError."""
    waiting = [point for point in points if _live(point.path) is None]
    if len(waiting) < len(points):
        print(f"{len(points) - len(waiting)} points have a job already.")
    if waiting:
        configs = {point.path: open_for_resume(point.path, allow) for point in waiting}
        queue_sweep(sweep.path, configs, allow)


def _queue(run_dir: Path, config: RunConfig, allow: bool = False) -> None:
    (job,) = submit([run_dir], config, run_dir / "slurm", allow)
    name = short(run_dir)
    print(
        f"Queued as job {job}: {name}\n"
        f"  see     {command('jobs')}\n"
        f"  follow  {command('logs', run_dir, '--follow')}\n"
        f"  stop    {command('stop', run_dir)}\n"
        f"  resume  {command('resume', run_dir)}"
    )


def _awaited(run_dir: Path, config: RunConfig) -> int:
    return follow(run_dir, config) if config.cluster.slurm.wait else 0


def _live(run_dir: Path) -> str | None:
    """The run's job that waits or runs."""
    found = states(job_ids(run_dir)[-1:])
    return next((job for job, state in found.items() if state.live), None)


def follow(run_dir: Path, config: RunConfig) -> int:
    """Shows how a queued run goes until its job has ended; 0 if the run is finished then, else 1.

    Ctrl-C ends the showing, not the job.
    """
    job = job_ids(run_dir)[-1]
    with shown(run_dir, config.steps, Console()) as watcher:
        while _still_live(job):
            watcher.tick([])
            time.sleep(_POLL_S)
        watcher.tick([])
    if (run_dir / FINISHED_FILE).exists():
        return 0
    print(f"Job {job} ended before the run was finished; what it printed: {output_of(run_dir)}")
    return 1


def _still_live(job: str) -> bool:
    try:
        return states([job])[job].live
    except UserError:  # Slurm does not answer just now: it is asked again
        return True
