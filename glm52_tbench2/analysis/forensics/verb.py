"""The verb: which steps of what, and what is printed."""

import json
import sys
from pathlib import Path

from rich.console import Console

from ...config.errors import UserError
from ..run_files import RunFiles
from .dumps import DumpSource, is_dump
from .examine import examine
from .source import RunSource, Source
from .terminal import as_json, show
from .verdict import verdict


def run(path: Path, steps: range | None, as_text: bool, console: Console | None = None) -> int:
    """Examines a run folder or a folder of dumps; prints text, or JSON.

    Exit code: 0 healthy, 1 not healthy or undetermined. Raises UserError for what is neither, and
    where there is nothing to read.
    """
    source = _source(path)
    waiting = Console(stderr=True)
    with waiting.status("reading") as status:
        found = examine(source, steps, status.update)
    if not found.measures.scans:
        told = "\n".join(["", *found.warnings])
        have = source.steps()
        which = f" from {steps.start} on; it has {have[0]} to {have[-1]}" if have and steps else ""
        raise UserError(f"{path} has no step to examine{which}.{told}")
    said = verdict(found)
    if as_text:
        show(found, said, console)
    else:
        json.dump(as_json(found, said), sys.stdout, indent=1)
        print()
    return 0 if said.healthy else 1


def _source(path: Path) -> Source:
    if (path / "config.yaml").exists():
        return RunSource(RunFiles.open(path))
    if is_dump(path):
        return DumpSource(path)
    raise UserError(
        f"{path} is no run: name a run folder, which holds config.yaml, or a folder of dumps with "
        "rollout_data/0.pt or 0.pt in it."
    )
