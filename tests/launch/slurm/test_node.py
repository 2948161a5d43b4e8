"""What the head of a job does at its start and its end, and what queues it; no Slurm is asked."""

from dataclasses import replace
from pathlib import Path

import pytest

from glm52_tbench2.cli import main
from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.identity import load_identity
from glm52_tbench2.config.schema import RunConfig, Scheduler
from glm52_tbench2.launch.run_folder import create
from glm52_tbench2.launch.slurm import job, submit
from glm52_tbench2.launch.slurm import train as slurm_train
from glm52_tbench2.launch.slurm.job import Job
from glm52_tbench2.launch.supervisor import RESTART_ME, USER_ERROR, Ended
from glm52_tbench2.launch.train import resume

AGAIN = Ended(RESTART_ME, "Stopped before its time was over.", again=True)


@pytest.fixture
def smoke(smoke: RunConfig) -> RunConfig:
    return replace(smoke, cluster=replace(smoke.cluster, scheduler=Scheduler.slurm))


@pytest.fixture
def bin_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All that is on PATH."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "bin"


def put(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def start(monkeypatch):
    """One start of a job on its head, whose supervisor ends as is said; the exit code."""

    def started(one: Job, ended: Ended, restarts: int = 0) -> object:
        monkeypatch.setattr(job, "_supervise", lambda *more: ended)
        monkeypatch.setenv("SLURM_NODEID", "0")
        monkeypatch.setenv("SLURM_NNODES", "1")
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
        with pytest.raises(SystemExit) as exited:
            one()
        return exited.value.code

    return started


def test_what_a_node_alone_sees_is_allowed_of_the_first_start(smoke, start, monkeypatch, capsys):
    smoke.cluster.slurm.container_image = "glm52.sqsh"
    run_dir, queued = create(smoke), []
    assert start(Job(run_dir), Ended(0, "")) == 0
    monkeypatch.setattr("glm52_tbench2.config.identity._version", lambda package: "9+cu")
    assert start(Job(run_dir), Ended(0, "")) == USER_ERROR
    told = capsys.readouterr().err
    assert "package torch: " in told and f"glm52 resume {run_dir} --allow" in told

    monkeypatch.setattr(slurm_train.preflight, "check", lambda config: None)
    monkeypatch.setattr(slurm_train, "_live", lambda run_dir: None)
    monkeypatch.setattr(
        slurm_train, "submit", lambda dirs, config, folder, allow: queued.append(allow) or ["8"]
    )
    resume(run_dir, allow=True)
    assert queued == [True]
    assert start(Job(run_dir, allow=True), Ended(0, ""), restarts=1) == USER_ERROR
    assert load_identity(run_dir)[1] == []
    assert start(Job(run_dir, allow=True), Ended(0, "")) == 0
    assert start(Job(run_dir), Ended(0, "")) == 0
    (entry,) = load_identity(run_dir)[1]
    assert all(line.endswith("-> 9+cu") for line in entry["differences"])


def test_a_job_that_can_be_queued_again_is(smoke, start, bin_dir, capsys):
    put(bin_dir / "scontrol", f'echo "$@" > {bin_dir}/asked')
    assert start(Job(create(smoke)), AGAIN, restarts=2) == RESTART_ME
    assert (bin_dir / "asked").read_text() == "requeue 7\n"
    assert "To be queued again: requeue 3 of 20." in capsys.readouterr().out


@pytest.mark.parametrize("script", [None, "exit 1"])
def test_a_job_that_cannot_be_queued_again_says_how_to_go_on(smoke, start, bin_dir, capsys, script):
    """As in a container without Slurm's client."""
    if script:
        put(bin_dir / "scontrol", script)
    run_dir = create(smoke)
    assert start(Job(run_dir), AGAIN) == RESTART_ME
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("The job could not be queued again (")
    assert last.endswith(f"glm52 resume {run_dir}")


def test_requeues_that_are_used_up_are_told(smoke, start, bin_dir, capsys):
    put(bin_dir / "scontrol", f"touch {bin_dir}/asked")
    run_dir = create(smoke)
    assert start(Job(run_dir), AGAIN, restarts=20) == RESTART_ME
    last = capsys.readouterr().out.splitlines()[-1]
    assert "max_requeues=20, are used up" in last and last.endswith(f"glm52 resume {run_dir}")
    assert not (bin_dir / "asked").exists()


def test_the_command_of_a_job_is_the_interpreter_of_the_nodes():
    config = compose(["experiment=smoke", "cluster=slurm", "cluster.slurm.python=/opt/env/python"])
    for runs in (1, 2):
        script = submit.script(config, Path("slurm"), runs)
        assert " /opt/env/python -u -m submitit.core._submit " in script
    other = compose(["experiment=smoke", "cluster=slurm"])
    assert len(submit.arrays({"a": config, "b": other, "c": config})) == 2


def test_jobs_queued_before_one_that_is_refused_are_named(tmp_path, bin_dir, monkeypatch, capsys):
    seen = bin_dir / "seen"
    put(
        bin_dir / "sbatch",
        f"[ -e {seen} ] && echo no more jobs >&2 && exit 1\n: > {seen}\necho Submitted batch job 7",
    )
    monkeypatch.setattr("glm52_tbench2.launch.preflight.problems", lambda config: [])
    runs = tmp_path / "runs"
    base = ["experiment=smoke", "cluster=slurm", "cluster.fabric=127.", f"runs_dir={runs}"]
    assert main(["train", "-m", *base, "cluster.nodes=1,2,3"]) == 2
    told = capsys.readouterr().err
    (folder,) = runs.iterdir()
    assert "sbatch refused the job: " in told and "nothing of it is queued." in told
    assert "Jobs queued before it: 7. Queue what is missing with: " in told
    assert f"glm52 sweep resume {folder}" in told
    assert [len(submit.job_ids(point)) for point in sorted(folder.glob("nodes*"))] == [1, 0, 0]
