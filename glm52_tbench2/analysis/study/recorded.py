"""Runs that were made elsewhere: what they measured is kept with the project, as JSON a run.

A study is many hours; its runs can be made by several machines, one after another. A file of
STUDY/measures/ put into data/study/recorded/ is such a run. A study that takes it copies it back:
a measures file whose run is not finished in the study's own folder is one that was made elsewhere.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...config.paths import DATA
from ..run_files import RunFiles
from ..sweep_files import SweepFiles
from .measures import kept

RECORDED = DATA / "study" / "recorded"
MEASURES = "measures"
"""In a study's folder."""


def measures_path(study_dir: Path, point: str) -> Path:
    return study_dir / MEASURES / f"{point}.json"


def take(study_dir: Path, recorded: Path) -> tuple[list[str], dict[str, str]]:
    """Takes what is recorded of the points that are not finished in a study.

    A recorded run is taken if it was the same run: equal knobs (of those that both know), tasks and
    starting weights. Its code and packages may be others, which the page tells.

    Returns the names of the points that are now known from elsewhere, and of those that are left
    although they are recorded, with a fact in which they differ.
    """
    taken, left = [], {}
    sweep = SweepFiles.open(study_dir)
    for point in sweep.points:
        path = recorded / f"{point.name}.json"
        measures = kept(path)
        if measures is None or sweep.status(point) in ("finished", "missing"):
            continue
        mine, theirs = facts(RunFiles.open(point.path).identity), facts(measures.identity)
        differing = [name for name in mine if name in theirs and mine[name] != theirs[name]]
        if differing:
            left[point.name] = differing[0]
            continue
        target = measures_path(study_dir, point.name)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, target)
        taken.append(point.name)
    return taken, left


def states(sweep: SweepFiles) -> dict[str, str]:
    """Point -> where it stands, as SweepFiles.status; recorded where it is not finished here and
    its measures are there."""
    found = {point.name: sweep.status(point) for point in sweep.points}
    for name, state in found.items():
        if state != "finished" and kept(measures_path(sweep.path, name)) is not None:
            found[name] = "recorded"
    return found


def facts(identity: Mapping[str, Any]) -> dict[str, Any]:
    """What makes two runs of a study the same, whatever code and machine they ran on."""
    found = {f"knob {name}": value for name, value in identity.get("config", {}).items()}
    for kind in ("task_sets", "tasks"):
        found |= {f"{kind} {name}": value for name, value in identity.get(kind, {}).items()}
    return found | {"starting weights": identity.get("model")}
