"""`train` and `resume` whole, over scripted roles."""

import json
import os
import signal
from pathlib import Path

import pytest

from glm52_tbench2.config import metrics_log, save_run_config
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.identity import load_identity
from glm52_tbench2.config.schema import Scheduler
from glm52_tbench2.launch.run_folder import create, lock
from glm52_tbench2.launch.slurm import train as slurm_train
from glm52_tbench2.launch.slurm import watch
from glm52_tbench2.launch.slurm.queue import JobState
from glm52_tbench2.launch.train import resume, train

from .scripted import core, server


@pytest.fixture
def roles(monkeypatch):
    """Puts scripted roles in the place of the real ones; {run} in a script is the run folder."""

    def put(*scripts: str) -> None:
        def place(config, run_dir: Path):
            return [server(), *(core(script.replace("{run}", str(run_dir))) for script in scripts)]

        monkeypatch.setattr("glm52_tbench2.launch.train.place", place)

    return put


def the_run(smoke) -> Path:
    (run_dir,) = Path(smoke.runs_dir).iterdir()
    return run_dir


def test_a_finished_run_writes_its_report_and_says_what_to_try_next(smoke, roles, capsys):
    roles("pass")
    assert train(smoke) == 0
    out = capsys.readouterr().out
    run_dir = the_run(smoke)
    assert str(run_dir) in out.splitlines()[0]
    assert "Try next" in out
    assert f"{run_dir}/report.html" in out
    assert (run_dir / "report.html").exists()


def test_a_run_that_is_stopped_says_how_to_go_on(smoke, roles, capsys):
    roles(f"import os, time; os.kill({os.getpid()}, 2); time.sleep(600)")
    assert train(smoke) == 130
    told = capsys.readouterr().err
    assert "Stopped by SIGINT." in told
    assert f"Go on with: glm52 resume {the_run(smoke)}" in told


def test_a_run_that_fails_names_the_culprit_and_how_to_go_on(smoke, roles, capsys):
    smoke.cluster.max_restarts = 0
    roles("raise SystemExit('loss is nan')")
    assert train(smoke) == 1
    told = capsys.readouterr().err
    assert "trainer ended with exit code 1" in told
    assert "loss is nan" in told
    assert f"glm52 resume {the_run(smoke)}" in told


def test_a_stopped_run_goes_on_in_its_folder_and_ends_once(smoke, roles, capsys):
    roles(f"import os, time; os.kill({os.getpid()}, 2); time.sleep(600)")
    train(smoke)
    run_dir = the_run(smoke)
    (run_dir / "checkpoints/step_000008").mkdir(parents=True)
    (run_dir / "checkpoints/step_000008/STABLE").touch()
    metrics_log.append(run_dir, 8, "trainer", {"trainer/loss": 1.0})
    roles("pass")
    assert resume(run_dir, allow=False) == 0
    assert f"{run_dir} goes on after step 8." in capsys.readouterr().out
    with pytest.raises(UserError, match="finished"):
        resume(run_dir, allow=False)


def test_bad_input_found_by_a_role_is_the_commands_own_answer(smoke, roles):
    roles("import sys; sys.exit(print('no such task.', file=sys.stderr) or 2)")
    with pytest.raises(UserError, match=r"^no such task\.\nNo checkpoint .*: glm52 resume "):
        train(smoke)


def test_nothing_is_made_when_something_stands_in_the_way(smoke, roles):
    roles("pass")
    smoke.model.path = "/no/such/model"
    with pytest.raises(UserError, match="/no/such/model"):
        train(smoke)
    assert not Path(smoke.runs_dir).exists()


def test_a_run_folder_in_use_is_refused(smoke, roles):
    roles(f"import os, time; os.kill({os.getpid()}, 2); time.sleep(600)")
    train(smoke)
    with lock(the_run(smoke)), pytest.raises(UserError, match="in use"):
        resume(the_run(smoke), allow=False)


@pytest.mark.parametrize("scheduler", Scheduler)
def test_what_is_allowed_is_not_recorded_of_a_run_that_cannot_go_on(
    smoke, roles, monkeypatch, scheduler
):
    roles("pass")
    smoke.cluster.scheduler = scheduler
    run_dir = create(smoke)
    smoke.seed, smoke.model.path = 7, "/no/such/model"
    save_run_config(smoke, run_dir)
    monkeypatch.setattr("glm52_tbench2.launch.preflight.cluster_problems", lambda config: [])
    monkeypatch.setattr("glm52_tbench2.launch.preflight.shutil.which", lambda name: name)
    before = load_identity(run_dir)
    for allow in (False, True):
        with pytest.raises(UserError, match=r"model\.path is /no/such/model"):
            resume(run_dir, allow)
    assert load_identity(run_dir) == before


def test_slurm_that_does_not_answer_for_a_moment_costs_a_followed_run_nothing(
    smoke, monkeypatch, capsys
):
    answers = iter([UserError("Slurm does not answer"), "RUNNING", "COMPLETED"])

    def states(jobs):
        answer = next(answers)
        if isinstance(answer, UserError):
            raise answer
        return {job: JobState(job, answer, "", "n1") for job in jobs}

    smoke.cluster.slurm.wait = True
    monkeypatch.setattr(slurm_train.preflight, "check", lambda config: None)
    monkeypatch.setattr(slurm_train, "submit", lambda run_dirs, *more: ["7"])
    monkeypatch.setattr(slurm_train, "job_ids", lambda run_dir: ["7"])
    monkeypatch.setattr(slurm_train, "output_of", lambda run_dir: None)
    monkeypatch.setattr(slurm_train, "states", states)
    monkeypatch.setattr(slurm_train, "_POLL_S", 0.0)
    assert slurm_train.train(smoke) == 1
    assert (the_run(smoke) / "config.yaml").exists()
    assert "Job 7 ended before the run was finished" in capsys.readouterr().out


def test_stop_finds_a_run_by_a_path_from_here(smoke, monkeypatch, capsys):
    folder = Path(smoke.runs_dir) / "run"
    folder.mkdir(parents=True)
    save_run_config(smoke, folder)
    beat = {"pid": os.getpid(), "time": 0.0, "phase": "running"}
    (folder / "heartbeat.json").write_text(json.dumps(beat))
    told = []
    monkeypatch.setattr(watch.os, "kill", lambda pid, number: told.append((pid, number)))
    monkeypatch.chdir(folder.parent)
    with lock(folder):
        assert watch.stop(Path("run")) == 0
        assert watch.stop(Path("../") / folder.parent.name / "run") == 0
    assert told == [(os.getpid(), signal.SIGTERM)] * 2
