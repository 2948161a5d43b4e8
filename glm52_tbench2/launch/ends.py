"""How the end of a role is told to a person."""

import re
import shutil
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ..config.paths import short
from .guard import CANNOT_START

_FULL_DISK_BYTES = 16 * 2**20
_FULL_DISK = re.compile(r"No space left on device|Disk quota exceeded|disk of .* is full")


class RunFailed(Exception):
    """The run cannot go on; the message names the culprit."""


def exit_text(code: int) -> str:
    """An exit code in words; 128 + N is the end by signal N."""
    if code == CANNOT_START:
        return "exit code 127 (its command cannot be started)"
    if code > 128:
        with suppress(ValueError):
            return f"signal {signal.Signals(code - 128).name}"
    return f"exit code {code}"


def sentence(lines: Sequence[str]) -> str:
    """What a role told its user on its way out: its last line, without the word error."""
    return lines[-1].strip().removeprefix("error: ") if lines else ""


def disk_full(run_dir: Path, lines: Sequence[str]) -> bool:
    """Whether what a role said last, or the disk itself, says that the run's disk is full."""
    if _FULL_DISK.search(sentence(lines)):
        return True
    return shutil.disk_usage(run_dir).free < _FULL_DISK_BYTES


def culprit(what: str, lines: Sequence[str], log: Path, run_dir: Path) -> str:
    """`what` happened to a role, the likely cause where it shows, and its last lines."""
    if disk_full(run_dir, lines):
        what += f" The disk that holds {run_dir} is full: free some space."
    elif "SIGKILL" in what and not any("Error" in line for line in lines):
        what += " Was the machine out of memory?"
    quoted = "\n".join(f"    {line}" for line in lines) or "    (it wrote nothing)"
    return f"{what} The end of {short(log)}:\n{quoted}"
