"""A run that is paused says so, and how it goes on, wherever somebody looks."""

import io
import json
import logging
import re

import pytest
from rich.console import Console

from glm52_tbench2.config import metrics_log, save_run_config
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.launch.progress import LiveProgress, PlainProgress
from glm52_tbench2.launch.run_numbers import RunNumbers
from glm52_tbench2.launch.slurm import watch
from glm52_tbench2.launch.slurm.queue import JobState
from glm52_tbench2.trainer.paused import PAUSED
from glm52_tbench2.trainer.watch import Watch


@pytest.fixture
def pause(tmp_path):
    """RUN/paused, as anybody may put it there."""
    return tmp_path / "run" / PAUSED


@pytest.fixture
def run_dir(pause, smoke):
    pause.parent.mkdir()
    save_run_config(smoke, pause.parent)
    return pause.parent


def test_the_trainer_logs_each_pause_once(run_dir, pause, smoke, caplog):
    caplog.set_level(logging.WARNING)
    seen = Watch(run_dir, smoke, rank=1, step=0)
    assert not seen.paused()
    for _ in range(2):
        pause.touch()
        assert seen.paused() and seen.paused()
        pause.unlink()
        assert not seen.paused()
    assert caplog.messages == [f"paused; remove {pause} to go on"] * 2


def test_progress_tells_each_pause_once(run_dir, pause):
    out = io.StringIO()
    progress = PlainProgress(RunNumbers(run_dir, 24), Console(file=out, width=200))
    for _ in range(2):
        pause.touch()
        progress.tick([])
        progress.tick([])
        pause.unlink()
        progress.tick([])
    assert out.getvalue().splitlines() == [f"paused; remove {pause} to go on"] * 2


def test_the_view_shows_a_pause_in_the_place_of_training(run_dir, pause):
    console = Console(file=io.StringIO(), width=400, force_terminal=True, color_system=None)
    told = {"phase": "wait", "step": 0, "samples_done": 0, "samples_total": 0}
    with LiveProgress(RunNumbers(run_dir, 24), console, "smoke-1") as progress:
        pause.touch()
        (run_dir / "progress.json").write_text(json.dumps(told))
        progress.tick([])
    shown = console.file.getvalue()
    assert "training" not in shown
    assert f"paused; remove {pause} to go on" in shown


def test_where_nothing_is_left_to_train_nothing_is_paused(run_dir, pause):
    pause.touch()
    metrics_log.append(run_dir, 24, "trainer", {})
    assert RunNumbers(run_dir, 23).paused == RunNumbers(run_dir, 0).paused == ""


def test_a_run_of_older_code_is_listed_and_read(run_dir, monkeypatch, capsys):
    config = run_dir / "config.yaml"
    config.write_text(re.sub(r"(?m)^  lag: .*\n", "", config.read_text()))
    (run_dir / watch.JOBS_FILE).parent.mkdir(exist_ok=True)
    (run_dir / watch.JOBS_FILE).write_text(json.dumps([{"job": "7", "folder": "x"}]))
    ended = {"7": JobState("7", "COMPLETED", "", "n1")}
    monkeypatch.setattr(watch, "states", lambda jobs: ended)
    assert watch.jobs(run_dir.parent, every=True) == 0
    assert "completed" in capsys.readouterr().out
    (run_dir / "logs").mkdir()
    (run_dir / "logs" / "driver.log").write_text("said\n")
    assert watch.logs(run_dir, "driver", follow=False) == 0
    assert capsys.readouterr().out == "said\n"
    with pytest.raises(UserError, match="does not run"):
        watch.stop(run_dir)


@pytest.mark.parametrize(("state", "shown"), [("RUNNING", "paused"), ("PENDING", "pending")])
def test_the_table_of_jobs_shows_a_pause(run_dir, pause, monkeypatch, capsys, state, shown):
    pause.touch()
    (run_dir / "slurm").mkdir()
    (run_dir / watch.JOBS_FILE).write_text(json.dumps([{"job": "7", "folder": "x"}]))
    monkeypatch.setattr(
        watch, "states", lambda jobs: {job: JobState(job, state, "Resources", "n1") for job in jobs}
    )
    assert watch.jobs(run_dir.parent, every=False) == 0
    header, line = (row.split("\t") for row in capsys.readouterr().out.splitlines())
    found = dict(zip(header, line, strict=True))
    why = f"remove {pause} to go on" if shown == "paused" else "Resources"
    assert (found["state"], found["why"]) == (shown, why)
