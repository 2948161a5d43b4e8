"""The files of checkpoints: checkpoints/step_N, whole once its STABLE file is there.

STABLE is written last and lists every file with its size and sha256, so one that was cut off or
damaged later is told from a good one.
"""

import errno
import hashlib
import json
import re
import shutil
import traceback
from pathlib import Path
from typing import Any

from glm52_tbench2.config.files import atomic_write_bytes

FOLDER = "checkpoints"
STABLE = "STABLE"

# torch and Megatron pass a writer's error on as text. Where a full disk cuts torch's zip archive
# short, it says that the archive's end is not where it should be, and no error number.
_DISK_FULL = re.compile(
    rf"\[Errno ({errno.ENOSPC}|{errno.EDQUOT})\]|inline_container\.cc:\d+\] \. unexpected pos"
)

Described = dict[str, dict[str, Any]]
"""File -> its size in bytes and its sha256."""


def checkpoint_path(run_dir: Path, step: int) -> Path:
    """Where the checkpoint after `step` steps lies."""
    return run_dir / FOLDER / f"step_{step:06d}"


def contents(folder: Path) -> list[str]:
    """The files of a checkpoint."""
    return sorted(path.name for path in folder.iterdir() if path.name != STABLE)


def describe(folder: Path, names: list[str]) -> Described:
    """Those of the files that are there."""
    found: Described = {}
    for name in names:
        path = folder / name
        if path.is_file():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            found[name] = {"size": path.stat().st_size, "sha256": digest}
    return found


def mark_stable(folder: Path, step: int, files: Described, **more: Any) -> None:
    """Makes the checkpoint a complete one. The weights are version `step`; `more` is told too."""
    stable = {"step": step, "weight_version": step, **more, "files": files}
    atomic_write_bytes(folder / STABLE, json.dumps(stable, indent=1).encode())


def stable_files(folder: Path) -> Described | str:
    """The files a checkpoint is made of, or what is wrong with its STABLE file."""
    try:
        return json.loads((folder / STABLE).read_text())["files"]
    except FileNotFoundError:
        return f"it has no {STABLE} file, so it was not finished"
    except (ValueError, KeyError, TypeError):
        return f"its {STABLE} file is damaged"


def damage(expected: Described, actual: Described) -> str | None:
    """What is wrong with the files themselves; None: nothing."""
    for name, about in sorted(expected.items()):
        if name not in actual:
            return f"{name} is missing"
        if actual[name] != about:
            return f"{name} is not what was written"
    return None


def steps_begun(run_dir: Path) -> list[int]:
    """Steps with a folder, complete or not, ascending; a copy beside it is no step's."""
    names = [path.name for path in (run_dir / FOLDER).glob("step_*")]
    return sorted(int(name[5:]) for name in names if name[5:].isdigit())


def steps_complete(run_dir: Path) -> list[int]:
    """Steps with a complete checkpoint, ascending."""
    return [
        step for step in steps_begun(run_dir) if (checkpoint_path(run_dir, step) / STABLE).exists()
    ]


def prune(run_dir: Path, step: int, keep_last: int, keep_every: int | None) -> None:
    """Deletes all but the newest complete checkpoints and those of every `keep_every`-th step.

    `step`: the one just written. Any after it are damaged, or the run would not have come back.
    """
    complete = [one for one in steps_complete(run_dir) if one <= step]
    keep = complete[-keep_last:]
    if keep_every is not None:
        keep += [one for one in complete if one % keep_every == 0]
    for one in set(steps_begun(run_dir)) - set(keep):
        folder = checkpoint_path(run_dir, one)
        # First of all no longer complete, whatever happens half-way.
        (folder / STABLE).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


def disk_full(error: BaseException) -> bool:
    """Whether a full disk or an exhausted quota is behind `error`, however it was wrapped."""
    return _DISK_FULL.search("".join(traceback.format_exception(error))) is not None
