"""What can be said is said, what can't is named."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from glm52_tbench2.cli import main

from .conftest import Planted


@pytest.fixture
def damaged(planted: Planted, tmp_path: Path) -> Path:
    """A healthy run with a half-written step, one of another schema version and one untrained."""
    run = tmp_path / "run"
    shutil.copytree(planted("healthy"), run)
    half = run / "rollouts" / "step_000003.parquet"
    half.write_bytes(half.read_bytes()[:1000])
    other = run / "rollouts" / "step_000005.parquet"
    table = pq.read_table(other)
    pq.write_table(table.replace_schema_metadata({"schema_version": "0"}), other)
    (run / "train" / "step_000024.parquet").unlink()
    return run


def test_damaged_run(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["forensics", str(damaged), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["unread_steps"] == [3, 5]
    told = " ".join(found["warnings"])
    assert "step_000003.parquet is not readable" in told
    assert "schema version 0" in told
    assert "1 steps" in " ".join(found["verdict"]["unknown"])


def test_one_step(planted: Planted, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forensics", str(planted("healthy")), "--step", "3"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("Undetermined: 1 steps are too few")
    assert "one step alone" in said


@pytest.mark.parametrize("steps", ["x", "5:3", ":", "900"])
def test_bad_steps(planted: Planted, capsys: pytest.CaptureFixture[str], steps: str) -> None:
    assert main(["forensics", str(planted("healthy")), "--step", steps]) == 2
    assert steps in capsys.readouterr().err


def test_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forensics", str(tmp_path)]) == 2
    assert "is no run" in capsys.readouterr().err
