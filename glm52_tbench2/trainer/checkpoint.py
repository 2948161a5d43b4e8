"""Checkpoints of the trainer: checkpoints/step_N, whole once its STABLE file is there.

Megatron's distributed format, so a checkpoint can be loaded into another number of ranks. STABLE
is written last and lists every file with its size and sha256, so one that was cut off or damaged
later is told from a good one. Nothing random is kept: every step seeds its generators from the
run's seed and its own number.
"""

import errno
import hashlib
import json
import logging
import queue
import re
import shutil
import traceback
from pathlib import Path
from typing import Any

import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.optimizer import MegatronOptimizer
from torch.distributed.checkpoint.api import CheckpointException

from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.files import atomic_write_bytes

from .model import PolicyModel
from .weights.safetensors import Folder

FOLDER = "checkpoints"
STABLE = "STABLE"

# Keys of the optimizer's tensors do not tell which of several chained optimizers has them.
LAYOUT = {"chained_optim_avoid_prefix": True}

# Megatron passes a writer's error on as text. Where a full disk cuts torch's zip archive short, it
# says that the archive's end is not where it should be, and no error number.
_DISK_FULL = re.compile(
    rf"\[Errno ({errno.ENOSPC}|{errno.EDQUOT})\]|inline_container\.cc:\d+\] \. unexpected pos"
)

log = logging.getLogger(__name__)


def checkpoint_path(run_dir: Path, step: int) -> Path:
    """Where the checkpoint after `step` steps lies."""
    return run_dir / FOLDER / f"step_{step:06d}"


def save(
    run_dir: Path, step: int, model: PolicyModel, optimizer: MegatronOptimizer, keep_last: int
) -> None:
    """Writes the checkpoint after `step` steps, then deletes all but the newest `keep_last`.

    A collective. The weights are version `step`.

    Raises UserError when the disk is full; what was written of this checkpoint is then deleted.
    """
    folder = checkpoint_path(run_dir, step)
    # A save that is waited for hands its results over in this process. Megatron's own queue lives
    # in a server process, which would outlive a kill.
    filesystem_async._results_queue = queue.Queue()
    try:
        if dist.get_rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        dist.barrier()
        dist_checkpointing.save(_state(model, optimizer, step, is_loading=False), str(folder))
        files = _describe(folder, _contents(folder))
        if dist.get_rank() == 0:
            stable = {"step": step, "weight_version": step, "files": files}
            atomic_write_bytes(folder / STABLE, json.dumps(stable, indent=1).encode())
            _prune(run_dir, keep_last)
        dist.barrier()
    except (Exception, CheckpointException) as error:
        if not disk_full(error):
            raise
        if dist.get_rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)
        kept = _complete(run_dir)
        raise UserError(
            f"The disk of {run_dir} is full, so the checkpoint of step {step} was not written; "
            + (f"that of step {kept[-1]} is whole. " if kept else "there is none yet. ")
            + "Free some space, then resume the run."
        ) from error


def load_latest(run_dir: Path, model: PolicyModel, optimizer: MegatronOptimizer) -> int | None:
    """Loads the newest checkpoint that is complete and intact; its step, or None if there is none.

    A collective. Damaged and unfinished ones are passed over with a warning, and stay where they
    are until a newer one is written.
    """
    step = newest_intact(run_dir)
    if step is None:
        return None
    state = dist_checkpointing.load(
        _state(model, optimizer, step, is_loading=True), str(checkpoint_path(run_dir, step))
    )
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return step


def load_weights(folder: Path, model: PolicyModel, source: Path) -> None:
    """Fills the model from the checkpoint that was imported from `source`. A collective.

    Raises UserError when it is not whole, or of other weights.
    """
    problem = _problem(folder)
    if problem is None and _imported_from(folder) != Folder(source).fingerprint():
        problem = f"it was not made of what is in {source} now"
    if problem:
        raise UserError(
            f"model.checkpoint {folder} cannot be loaded: {problem}; make it with glm52 weights "
            "import, or write model.checkpoint=null."
        )
    weights = model.sharded_state_dict(metadata=dict(LAYOUT))
    state = dist_checkpointing.load({"model": weights}, str(folder))
    model.load_state_dict(state["model"])


def newest_intact(run_dir: Path) -> int | None:
    """The step of the newest checkpoint whose files are all as they were written. A collective."""
    for step in reversed(_folders(run_dir)):
        problem = _problem(checkpoint_path(run_dir, step))
        if problem is None:
            return step
        if dist.get_rank() == 0:
            log.warning("Checkpoint %s is passed over: %s", checkpoint_path(run_dir, step), problem)
    return None


def disk_full(error: BaseException) -> bool:
    """Whether a full disk or an exhausted quota is behind `error`, however it was wrapped."""
    return _DISK_FULL.search("".join(traceback.format_exception(error))) is not None


def _state(
    model: PolicyModel, optimizer: MegatronOptimizer, step: int, *, is_loading: bool
) -> dict[str, Any]:
    weights = model.sharded_state_dict(metadata=dict(LAYOUT))
    return {
        "step": step,
        "model": weights,
        "optimizer": optimizer.sharded_state_dict(
            weights, is_loading=is_loading, metadata=dict(LAYOUT)
        ),
    }


def _contents(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.name != STABLE)


def _describe(folder: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    """Size in bytes and sha256 of each file; the ranks share the reading."""
    mine = {}
    for name in names[dist.get_rank() :: dist.get_world_size()]:
        path = folder / name
        if path.is_file():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            mine[name] = {"size": path.stat().st_size, "sha256": digest}
    everyone: list[dict[str, dict[str, Any]]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, mine)
    return {name: about for part in everyone for name, about in sorted(part.items())}


def _problem(folder: Path) -> str | None:
    """What is wrong with a checkpoint, the same on every rank; None: nothing."""
    found: list[Any] = [_stable(folder)] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(found, src=0)
    files = found[0]
    if isinstance(files, str):
        return files
    actual = _describe(folder, sorted(files))
    for name, about in sorted(files.items()):
        if name not in actual:
            return f"{name} is missing"
        if actual[name] != about:
            return f"{name} is not what was written"
    return None


def _stable(folder: Path) -> dict[str, Any] | str:
    """The files a checkpoint is made of, or what is wrong with its STABLE file."""
    try:
        return json.loads((folder / STABLE).read_text())["files"]
    except FileNotFoundError:
        return f"it has no {STABLE} file, so it was not finished"
    except (ValueError, KeyError, TypeError):
        return f"its {STABLE} file is damaged"


def _imported_from(folder: Path) -> Any:
    """The fingerprint of the weights that a whole checkpoint was imported from."""
    return json.loads((folder / STABLE).read_text()).get("source")


def _folders(run_dir: Path) -> list[int]:
    """Steps with a folder, ascending; the same on every rank."""
    names = [p.name for p in (run_dir / FOLDER).glob("step_*")]
    found = [sorted(int(n[5:]) for n in names if n[5:].isdigit())]
    dist.broadcast_object_list(found, src=0)
    return found[0]


def _complete(run_dir: Path) -> list[int]:
    found = (run_dir / FOLDER).glob(f"step_*/{STABLE}")
    return sorted(int(path.parent.name[5:]) for path in found)


def _prune(run_dir: Path, keep_last: int) -> None:
    keep = _complete(run_dir)[-keep_last:]
    for folder in (run_dir / FOLDER).glob("step_*"):
        if int(folder.name[5:]) not in keep:
            # First of all no longer complete, whatever happens half-way.
            (folder / STABLE).unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
