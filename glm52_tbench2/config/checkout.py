"""The code at hand and the machine it runs on."""

import hashlib
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

from .fingerprints import entries, file_hash, hash_files
from .once import fact
from .paths import ROOT

CODE = ROOT / "glm52_tbench2"
READERS = (
    "analysis",
    "cli",
    "config/docs.py",
    "config/knobs.py",
    "launch/progress.py",
    "launch/run_numbers.py",
    "tasks/show.py",
    "trainer/influence",
    "trainer/warm_start",
)
"""Below CODE, what only shows, reads the files of runs or hands over to others; and what made the
starting weights, which are known by themselves."""

ASKED = ("analysis/sentinel", "analysis/run_files.py", "analysis/stats.py")
"""Of these, what the trainer asks: it may mask samples or end a run."""

_WATCHED = ("glm52_tbench2", "conf", "data")


@fact
def sources(code: Path = CODE) -> dict[str, str]:
    """Each source file that decides results -> its sha256. Raises OSError."""
    return {
        name: file_hash(path)
        for name, path in entries(code, deep=True)
        if name.endswith((".py", ".sh")) and (_below(name, ASKED) or not _below(name, READERS))
    }


def _below(name: str, places: tuple[str, ...]) -> bool:
    return any(f"{name}/".startswith(f"{place}/") for place in places)


class Git:
    """What git knows of a checkout: asked at once, answered while others work."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        # Installed inside another project's checkout, ours would be told to be that one.
        known = (root / ".git").exists()
        status = ("status", "--porcelain=v2", "--branch", "--untracked-files=all", "-z")
        self._status = self._start(*status) if known else None
        self._difference = self._start("diff", "HEAD") if known else None

    @fact
    def told(self) -> tuple[str, str]:
        """HEAD, or unknown outside a checkout; and 12 hex digits over what differs from it in code,
        conf and data, new files included, or "". Raises OSError.
        """
        if self._status is None or self._difference is None:
            return "unknown", ""
        difference = self._difference.communicate()[0]
        lines = os.fsdecode(self._status.communicate()[0]).split("\0")
        found = re.search(r"^# branch\.oid ([0-9a-f]+)$", "\n".join(lines), re.MULTILINE)
        if found is None:
            return "unknown", ""
        new = sorted(line[2:] for line in lines if line.startswith("? "))
        if not difference and not new:
            return found[1], ""
        digest = hashlib.sha256(difference)
        digest.update(hash_files((name, str(self._root / name)) for name in new).encode())
        return found[1], digest.hexdigest()[:12]

    def _start(self, *arguments: str) -> "subprocess.Popen[bytes] | None":
        command = ["git", "--no-optional-locks", "-C", str(self._root), *arguments, "--", *_WATCHED]
        try:
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        except FileNotFoundError:
            return None


@fact
def machine() -> dict[str, Any]:
    """cpu and gpu by name ("none" without one), cores this process may use, python's version."""
    gpus = {
        match[1]
        for path in Path("/proc/driver/nvidia/gpus").glob("*/information")
        if (match := re.search(r"^Model:\s*(.+)$", path.read_text(), re.MULTILINE))
    }
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": ", ".join(sorted(gpus)) or "none",
        "python": platform.python_version(),
    }


def _cpu() -> str:
    with open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
