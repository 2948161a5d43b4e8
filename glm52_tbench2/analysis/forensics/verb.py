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


def run(path: Path, steps: str | None, as_text: bool, console: Console | None = None) -> int:
    """Examines a run folder or a folder of dumps; prints text, or JSON.

    Exit code: 0 healthy, 1 not healthy or undetermined. Raises UserError for what is neither, for
    steps that are none, and where there is nothing to read.
    """
    first, last = _span(steps)
    source = _source(path)
    waiting = Console(stderr=True)
    with waiting.status("reading") as status:
        found = examine(source, first, last, status.update)
    if not found.measures.scans:
        told = "\n".join(["", *found.warnings])
        have = source.steps()
        which = f" of {steps}; it has {have[0]} to {have[-1]}" if have and steps else ""
        raise UserError(f"{path} has no step to examine{which}.{told}")
    said = verdict(found)
    if as_text:
        show(found, said, console)
    else:
        json.dump(as_json(found, said), sys.stdout, indent=1)
        print()
    return 0 if said.name == "healthy" else 1


def _source(path: Path) -> Source:
    if (path / "config.yaml").exists():
        return RunSource(RunFiles.open(path))
    if is_dump(path):
        return DumpSource(path)
    raise UserError(
        f"{path} is no run: name a run folder, which holds config.yaml, or a folder of dumps with "
        "rollout_data/0.pt or 0.pt in it."
    )


def _span(steps: str | None) -> tuple[int | None, int | None]:
    """12 -> (12, 12), 5:20 -> (5, 20), 5: and :20 likewise; None -> (None, None)."""
    if steps is None:
        return None, None
    start, colon, end = steps.partition(":")
    if not colon:
        end = start
    if any(part and not part.isdigit() for part in (start, end)) or not (start or end):
        raise UserError(f"--step {steps} names no steps; write 12, 5:20, 5: or :20.")
    first, last = (int(part) if part else None for part in (start, end))
    if first is not None and last is not None and first > last:
        raise UserError(f"--step {steps} names no steps; write the smaller one first.")
    return first, last
