"""A small run for each way of going wrong, written and examined once."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from benchmarks.synthetic_run import SyntheticRun
from glm52_tbench2.analysis.forensics.examine import Examination, examine
from glm52_tbench2.analysis.forensics.source import RunSource
from glm52_tbench2.analysis.run_files import RunFiles

STEPS, ONSET = 24, 12

Planted = Callable[[str], Path]


def written(path: Path, kind: str, steps: int = STEPS, hold: int | None = None) -> Path:
    """A run of 16 samples a step."""
    run = SyntheticRun(path, kind, steps, ONSET, prompts=4, samples=4, tokens=1024, cap=256)
    return run.write(hold)


def examined(path: Path) -> Examination:
    return examine(RunSource(RunFiles.open(path)))


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """Kind -> folder of its run. Read only."""
    folder = tmp_path_factory.mktemp("planted")
    return cache(lambda kind: written(folder / kind, kind))
