"""What `glm52 train` and `glm52 resume` do."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ..analysis.run_files import HEARTBEAT_FILE
from ..config.compose import load_run_config
from ..config.errors import UserError
from ..config.fabric import fabric_address
from ..config.paths import command, short
from ..config.schema import RunConfig, Scheduler
from . import evaluate, preflight
from .placement import place
from .progress import shown
from .run_folder import create, last_checkpoint, lock, open_for_resume
from .slurm import train as slurm
from .supervisor import USER_ERROR, Ended, Supervisor


def train(config: RunConfig, origin: dict[str, Any] | None = None) -> int:
    """Runs a new run to its end, or queues it where the scheduler is Slurm; the exit code.

    0 finished (or queued), 1 failed, 128 + N stopped by signal N.

    `origin`: what the run is made from, see :class:`glm52_tbench2.config.identity.Made`.

    Raises UserError, before anything is made or started, with all that stands in the way.
    """
    preflight.tell([config])
    if config.cluster.scheduler is Scheduler.slurm:
        return slurm.train(config, origin)
    preflight.check(config)
    return _new(config, origin)


def evaluated(config: RunConfig, origin: dict[str, Any]) -> int:
    """Plays an evaluation to its end and prints its results; returns and raises as :func:`train`.

    `config`, `origin`: see :func:`.evaluate.planned`.
    """
    preflight.check(config)
    evaluate.check_room(config)
    return _new(config, origin)


def resume(run_dir: Path, allow: bool) -> int:
    """Runs a stopped run on, from its last complete checkpoint; returns as :func:`train`.

    `allow`: also when it would go on under another identity, which is then recorded.
    """
    run_dir = run_dir.resolve()
    if load_run_config(run_dir).cluster.scheduler is Scheduler.slurm:
        return slurm.resume(run_dir, allow)
    return _end(run_dir, go_on(run_dir, allow))


def go_on(run_dir: Path, allow: bool) -> Ended:
    """Runs a run that is not finished, from its last complete checkpoint or its start, to its end.

    Raises UserError, before anything is started, as :func:`train` does.
    """
    config = load_run_config(run_dir)  # else the lock would be made in any folder
    with lock(run_dir) as lock_fd:
        preflight.check(config)
        evaluate.check_goes_on(run_dir, config)
        open_for_resume(run_dir, allow)
        step = last_checkpoint(run_dir)
        begun = (run_dir / HEARTBEAT_FILE).exists()
        how = "goes on with the samples it has" if begun else "starts"
        greeting = f"{short(run_dir)} {how if step is None else f'goes on after step {step}'}."
        return _supervise(run_dir, config, lock_fd, greeting)


def _new(config: RunConfig, origin: dict[str, Any] | None) -> int:
    config, origin = evaluate.with_endpoint(config, origin)
    run_dir = create(config, origin)
    greeting = f"Run folder: {short(run_dir)}"
    if first := (origin or {}).get("rerun_of"):
        compared = command("verify", run_dir.parent / first, run_dir)
        greeting += f"\nOnce it has finished, compare the two: {compared}"
    with lock(run_dir) as lock_fd:
        return _end(run_dir, _supervise(run_dir, config, lock_fd, greeting))


def _supervise(run_dir: Path, config: RunConfig, lock_fd: int, greeting: str) -> Ended:
    console = Console()
    host, _ = fabric_address(config.cluster.fabric)
    console.print(greeting, markup=False, highlight=False, soft_wrap=True)
    with shown(run_dir, config.steps, console) as watcher:
        return Supervisor(
            run_dir,
            place(config, run_dir),
            watcher,
            max_restarts=config.cluster.max_restarts,
            host=host,
            lock_fd=lock_fd,
        ).run()


def _end(run_dir: Path, ended: Ended) -> int:
    """Tells how the run ended, and what to do next; its exit code."""
    if ended.code == 0:
        _finished(run_dir, Console())
        return 0
    told = f"{ended.text}\n{_kept(run_dir)} Go on with: {command('resume', run_dir)}"
    if ended.code == USER_ERROR:
        raise UserError(told)
    with suppress(OSError):  # after a hang-up nobody reads it
        print(told, file=sys.stderr, flush=True)
    return ended.code


def _kept(run_dir: Path) -> str:
    if not load_run_config(run_dir).trains:
        return "No finished sample is lost."
    step = last_checkpoint(run_dir)
    kept = "No checkpoint is complete yet" if step is None else f"Step {step} is safe"
    return f"{kept}, and no finished batch is lost."


def _finished(run_dir: Path, console: Console) -> None:
    """Writes the report and prints the summary; a report that fails does not fail the run."""
    from ..analysis.evaluation import evaluation
    from ..analysis.report import write_report
    from ..analysis.summary import summary

    console.print()
    if not load_run_config(run_dir).trains:
        console.print(Text(evaluation(run_dir)), soft_wrap=True)
        return
    try:
        write_report(run_dir)
        console.print(Text(summary(run_dir)), soft_wrap=True)
    except Exception as error:
        print(
            f"The run is finished, but its report is not written ({type(error).__name__}: {error})."
            f" Try: {command('report', run_dir)}",
            file=sys.stderr,
        )
