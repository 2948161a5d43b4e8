"""`glm52 study` whole, with a scripted role in the place of each run's."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from glm52_tbench2 import cli

from . import sweeping

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120


@pytest.fixture(autouse=True)
def own_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores after the test what `put` replaces."""
    monkeypatch.setattr("glm52_tbench2.launch.train.place", None)
    monkeypatch.setattr("glm52_tbench2.config.signals.Signals.open", None)


def starts(study: Path) -> dict[str, int]:
    return {path.parent.name: len(path.read_text().splitlines()) for path in study.glob("*/starts")}


def test_a_killed_study_goes_on_and_a_failed_run_does_not_stop_it(tmp_path: Path, capsys) -> None:
    study = tmp_path / "runs" / "study"
    role = """
if run.name == "base-seed1":
    sys.exit("loss is nan")
if run.name == "lag0-seed1" and not (run / "again").exists():
    time.sleep(600)
"""
    command = [sys.executable, "-m", "tests.launch.sweeping", role, "study", "--quick", str(study)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    )
    until = time.monotonic() + DEADLINE_S
    while not (study / "lag0-seed1" / "starts").exists():
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    retries = starts(study)["base-seed1"]
    assert "0 of 6 runs finished" in (study / "study.html").read_text()

    sweeping.put("")
    assert cli.main(["study", str(study), "--arms", "lag0,base"]) == 0
    found = starts(study)
    assert found == {
        "base-seed1": retries + 1,
        "lag0-seed1": 2,
        "base-seed2": 1,
        "lag0-seed2": 1,
    }, "those arms alone, and of the plan that the study was made with"
    told = capsys.readouterr()
    assert "Point 1 of 4" in told.out and "left" in told.out
    assert "study.html tells what the study has found so far." in told.out

    assert cli.main(["study", str(study)]) == 0
    assert starts(study) == found | {"no_push_down-seed1": 1, "no_push_down-seed2": 1}
    assert "6 of 6 runs finished" in (study / "study.html").read_text()


def test_what_another_command_has_finished_meanwhile_is_not_run_again(
    tmp_path: Path, capsys
) -> None:
    study = tmp_path / "runs" / "study"
    sweeping.put("""
if run.name == "base-seed1":
    (run.parent / "base-seed2" / "finished").touch()
""")
    assert cli.main(["study", str(study), "--quick", "--arms", "base"]) == 0
    assert starts(study) == {"base-seed1": 1}
    told = capsys.readouterr()
    assert "base-seed2 is finished, by another command" in told.out and not told.err


def test_runs_made_elsewhere_are_not_run_again(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = tmp_path / "there" / "study", tmp_path / "here" / "study"
    monkeypatch.setattr("glm52_tbench2.analysis.study.recorded.RECORDED", there / "measures")
    sweeping.put("")
    assert cli.main(["study", str(there), "--quick", "--arms", "base"]) == 0
    assert cli.main(["study", str(here), "--quick", "--recorded", "--page"]) == 0
    assert "2 of 6 runs are taken from those recorded in" in capsys.readouterr().out
    assert "2 of 6 runs finished, 2 of them recorded" in (here / "study.html").read_text()
    assert cli.main(["study", str(here), "--arms", "base,lag0"]) == 0
    assert starts(here) == {"lag0-seed1": 1, "lag0-seed2": 1}
    capsys.readouterr()
    assert cli.main(["study", str(here), "--arms", "base"]) == 0
    assert "2 of 2 runs are recorded, and not run here." in capsys.readouterr().out
    assert "4 of 6 runs finished, 2 of them recorded" in (here / "study.html").read_text()


def test_an_unknown_arm_is_told_before_anything_is_made(tmp_path: Path, capsys) -> None:
    assert cli.main(["study", str(tmp_path / "study"), "--quick", "--arms", "lag9"]) == 2
    assert "The study has no arm lag9; write some of base, lag0" in capsys.readouterr().err
    assert not (tmp_path / "study").exists()
