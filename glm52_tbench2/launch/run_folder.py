"""The folder of a run: made once, opened again only as the same run, by one at a time."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from ..analysis.run_files import FINISHED_FILE
from ..config.compose import load_run_config, save_run_config
from ..config.errors import UserError
from ..config.identity import Identity, identify, load_identity, runs_here, save_identity
from ..config.paths import command, resolve, short
from ..config.schema import RunConfig
from ..tasks.sets import load_set
from ..trainer.checkpoint_files import steps_complete

LOCK_FILE = ".lock"
_DYING_S = 30.0


def create(config: RunConfig, origin: dict[str, Any] | None = None) -> Path:
    """Makes the folder of a new run, with its config and identity, and returns its path.

    `origin`: what the run was made from, see :class:`glm52_tbench2.config.identity.Made`.
    Raises UserError when it cannot be written.
    """
    identity = identity_now(config, origin)
    runs = resolve(config.runs_dir)
    base = f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        runs.mkdir(parents=True, exist_ok=True)
        run_dir = _new_folder(runs, base)
        save_run_config(config, run_dir)
        save_identity(identity, run_dir, history=[])
    except OSError as error:
        raise UserError(
            f"No run folder can be written in {runs}: {error.strerror}; "
            "write runs_dir=FOLDER on a disk with room."
        ) from error
    return run_dir


def _new_folder(runs: Path, base: str) -> Path:
    for attempt in range(1, 1000):
        run_dir = runs / (base if attempt == 1 else f"{base}-{attempt}")
        try:
            run_dir.mkdir()
        except FileExistsError:
            continue
        return run_dir
    raise UserError(f"{runs} already holds 1000 runs named {base}; write another name=.")


def identity_now(
    config: RunConfig, origin: dict[str, Any] | None = None, on_node: bool = False
) -> Identity:
    """The identity `config` has with the code, tasks and packages of this moment.

    `origin`, `on_node`: see :func:`glm52_tbench2.config.identity.identify`.
    """
    sets = [load_set(name) for name in (config.data.train, config.data.eval)]
    return identify(config, sets, origin, on_node)


def differing(
    now: Identity, started: Identity, history: list[dict[str, Any]]
) -> tuple[list[str], list[str]]:
    """What makes a run another than it was started as: all of it, and what was not allowed yet."""
    differences = started.differences(now)
    accepted = {line for entry in history for line in entry["differences"]}
    return differences, [line for line in differences if line not in accepted]


def open_for_resume(run_dir: Path, allow: bool, on_node: bool = False) -> RunConfig:
    """The config of a run that is to go on.

    Where its processes are started, identity.json is given what a node tells, and the differences.

    Args:
        allow: go on although the identity differs.
        on_node: this is a node of the run's job.

    Raises UserError when it is no run folder, the run is finished, or it would not be the same
    run: with what differs and was not allowed before, and how to go on in spite of it.
    """
    config = load_run_config(run_dir)
    started, history = load_identity(run_dir)
    if (run_dir / FINISHED_FILE).exists():
        done = f"finished all its {config.steps} steps" if config.trains else "been evaluated"
        verb = "train" if config.trains else "eval"
        raise UserError(f"{short(run_dir)} has {done}; start a new run with {command(verb)}.")
    now = identity_now(config, on_node=on_node)
    differences, unheard = differing(now, started, history)
    if unheard and not allow:
        listed = "\n".join(f"  {line}" for line in unheard)
        raise UserError(
            f"{short(run_dir)} would go on as another run than it was started as. What differs:\n"
            f"{listed}\nUndo that, or accept it with: {command('resume', run_dir, '--allow')}"
        )
    if not runs_here(config, on_node):
        return config
    changed = differences != (history[-1]["differences"] if history else [])
    if changed:
        entry = {
            "time": time.time(),
            "after_step": last_checkpoint(run_dir) or 0,
            "differences": differences,
        }
        history = [*history, entry]
    # The run keeps the identity it was started with, which its files carry.
    completed = started.completed(now)
    if changed or completed is not started:
        save_identity(completed, run_dir, history)
    return config


def last_checkpoint(run_dir: Path) -> int | None:
    """Step of the newest complete checkpoint, None before the first."""
    return max(steps_complete(run_dir), default=None)


@contextmanager
def lock(run_dir: Path) -> Iterator[int]:
    """Holds the run folder for one supervisor; yields the descriptor that holds the lock.

    Whoever inherits the descriptor holds the lock too, so it outlives a killed supervisor by as
    long as its roles do. Raises UserError while another supervisor runs there.
    """
    path = run_dir / LOCK_FILE
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        give_up = time.monotonic() + _DYING_S
        while not _try_lock(fd):
            holder = path.read_text().strip()
            if time.monotonic() > give_up or (holder.isdigit() and _runs(int(holder))):
                raise UserError(
                    f"{short(run_dir)} is in use by the supervisor with process id "
                    f"{holder or 'unknown'}; wait for it to end, or stop it with Ctrl-C."
                )
            time.sleep(0.1)  # its supervisor is gone, and its last processes are ending
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        yield fd
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise UserError(
            f"The disk of run folders keeps no locks ({error.strerror}), by which a run is started "
            "once alone; mount it with flock, or write another runs_dir."
        ) from error
    return True


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
