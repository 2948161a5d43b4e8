"""Jobs on a real Slurm that end before any role starts: queued, told, stopped, refused."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from glm52_tbench2.cli import main
from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.launch.slurm.queue import states
from glm52_tbench2.launch.slurm.submit import job_ids
from glm52_tbench2.launch.train import resume, train

pytestmark = pytest.mark.usefixtures("cluster")
ENDS_S = 60.0


@pytest.fixture
def queue(tmp_path: Path) -> Callable[..., Path]:
    """Queues a smoke run whose job runs some shell lines first; its run folder."""

    def put(*setup: str, **slurm: object) -> Path:
        config = compose(["experiment=smoke", "cluster=slurm", "cluster.fabric=127."])
        asked = replace(config.cluster.slurm, setup=list(setup), **slurm)  # type: ignore[arg-type]
        cluster = replace(config.cluster, slurm=asked)
        train(replace(config, cluster=cluster, runs_dir=str(tmp_path / "runs")))
        (run_dir,) = (tmp_path / "runs").iterdir()
        return run_dir

    return put


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + ENDS_S
    while not holds():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.2)


def state(run_dir: Path) -> str:
    job = job_ids(run_dir)[-1]
    return states([job])[job].state


def listed(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The run's line of `glm52 jobs --all`."""
    capsys.readouterr()
    assert main(["jobs", "--all", "--runs-dir", str(run_dir.parent)]) == 0
    header, line = (row.split("\t") for row in capsys.readouterr().out.splitlines())
    return dict(zip(header, line, strict=True))


def test_queuing_says_how_to_follow_stop_and_resume(queue, capsys):
    run_dir = queue("sleep 60")
    said = capsys.readouterr().out
    assert f"Queued as job {job_ids(run_dir)[0]}: {run_dir}" in said
    for verb in ("logs", "stop", "resume"):
        assert f"glm52 {verb} {run_dir}" in said
    main(["stop", str(run_dir)])


def test_a_job_that_dies_in_its_first_second_is_told(queue, capsys):
    run_dir = queue("echo no module of that name", "exit 3")
    wait_until(lambda: state(run_dir) == "FAILED")
    line = listed(run_dir, capsys)
    assert (line["state"], line["step"]) == ("failed", "0 of 24")
    assert line["why"] == "no module of that name"


def test_a_job_runs_the_interpreter_of_the_nodes(queue, capsys, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho its own: $2 $3\nexit 3\n")
    python.chmod(0o755)
    run_dir = queue(f"export PATH={tmp_path}:$PATH", python="python")
    wait_until(lambda: state(run_dir) == "FAILED")
    assert listed(run_dir, capsys)["why"] == "its own: -m submitit.core._submit"


def test_a_run_has_one_job_at_a_time_and_can_be_stopped(queue, capsys):
    run_dir = queue("sleep 600")
    wait_until(lambda: state(run_dir) == "RUNNING")
    assert listed(run_dir, capsys)["why"] == "n1"
    with pytest.raises(UserError, match=f"has a job already, {job_ids(run_dir)[0]}"):
        resume(run_dir, allow=False)
    assert main(["stop", str(run_dir)]) == 0
    wait_until(lambda: state(run_dir) == "CANCELLED")
    capsys.readouterr()
    assert main(["stop", str(run_dir)]) == 2
    assert "there is nothing to stop" in capsys.readouterr().err


def test_a_run_that_was_stopped_is_queued_again_in_its_folder(queue, capsys):
    run_dir = queue("exit 3")
    wait_until(lambda: state(run_dir) == "FAILED")
    assert resume(run_dir, allow=False) == 0
    assert "will go on from its start" in capsys.readouterr().out
    assert len(set(job_ids(run_dir))) == 2
    wait_until(lambda: state(run_dir) == "FAILED")


def test_a_job_that_waits_says_why(queue, capsys):
    first = queue("sleep 600", exclusive=True)
    held = compose(["experiment=smoke", "cluster=slurm", "cluster.fabric=127.", "cluster.nodes=4"])
    train(replace(held, runs_dir=str(first.parent / "other")))
    (run_dir,) = (first.parent / "other").iterdir()
    wait_until(lambda: listed(run_dir, capsys)["why"] == "Resources")
    assert listed(run_dir, capsys)["state"] == "pending"
    for one in (run_dir, first):
        main(["stop", str(one)])


def test_what_sbatch_refuses_is_told_and_nothing_is_left(queue, tmp_path):
    with pytest.raises(UserError, match=r"sbatch refused the job: .*license"):
        queue("exit 3", extra={"licenses": "none-of-this"})
    assert list((tmp_path / "runs").iterdir()) == []


def test_following_ends_with_the_job(queue, capsys, monkeypatch):
    monkeypatch.setattr("glm52_tbench2.launch.slurm.train._POLL_S", 0.2)
    queue("exit 3", wait=True)
    assert "ended before the run was finished; what it printed: " in capsys.readouterr().out


def test_logs_of_a_role_that_there_are_none_of_names_those_there_are(queue, capsys):
    run_dir = queue("echo nothing to see", "exit 3")
    wait_until(lambda: state(run_dir) == "FAILED")
    capsys.readouterr()
    assert main(["logs", str(run_dir)]) == 0
    assert "nothing to see" in capsys.readouterr().out
    assert main(["logs", str(run_dir), "egine-0"]) == 2
    assert "has no log of egine-0; it has: job" in capsys.readouterr().err


def sweep(runs_dir: Path, *more: str) -> Path:
    """Queues two points whose jobs end at once; the sweep's folder."""
    base = ["experiment=smoke", "cluster=slurm", "cluster.fabric=127.", f"runs_dir={runs_dir}"]
    ends = "cluster.slurm.setup=[exit 3]"
    assert main(["train", "-m", *base, ends, "seed=1,2", *more]) == 0
    (folder,) = runs_dir.iterdir()
    return folder


def test_a_sweep_is_one_array_and_what_is_missing_can_be_queued_again(tmp_path, capsys):
    folder = sweep(tmp_path / "runs")
    said = capsys.readouterr().out
    points = [folder / "seed=1", folder / "seed=2"]
    first, second = (job_ids(point)[0] for point in points)
    assert (first.partition("_")[0], first[-2:], second[-2:]) == (second[:-2], "_0", "_1")
    assert f"Queued 2 points as job {first[:-2]}: {folder}" in said
    wait_until(lambda: [state(point) for point in points] == ["FAILED"] * 2)
    assert main(["sweep", "resume", str(folder)]) == 0
    assert [len(job_ids(point)) for point in points] == [2, 2]
    wait_until(lambda: [state(point) for point in points] == ["FAILED"] * 2)


def test_a_dry_run_shows_the_very_script_that_a_sweep_is_queued_with(tmp_path, capsys):
    where = f"hydra.sweep.dir={tmp_path / 'runs' / 'trial'}"
    base = ["experiment=smoke", "cluster=slurm", "cluster.fabric=127.", where]
    ends = "cluster.slurm.setup=[exit 3]"
    assert main(["train", "-m", "--dry-run", *base, ends, "seed=1,2"]) == 0
    said = capsys.readouterr().out
    assert not (tmp_path / "runs").exists()
    folder = sweep(tmp_path / "runs", where)
    (queued,) = (folder / "slurm").glob("*_submission.sh")
    assert said.partition("#!")[2].startswith(queued.read_text().removeprefix("#!").rstrip())


def test_points_that_ask_for_different_jobs_are_different_arrays(tmp_path, capsys):
    folder = sweep(tmp_path / "runs", "cluster.nodes=1,2")
    arrays = [job_ids(path)[0].partition("_")[0] for path in sorted(folder.glob("*seed*"))]
    assert len(arrays) == 4 and len(set(arrays)) == 2


def test_a_sweep_that_cannot_run_here_is_refused_before_anything_is_made(tmp_path, capsys):
    runs = tmp_path / "runs"
    more = [f"runs_dir={runs}", "cluster.nodes=1,9", "seed=1"]
    code = main(["train", "-m", "experiment=smoke", "cluster=slurm", "cluster.fabric=127.", *more])
    assert code == 2
    assert "nodes=9: cluster.nodes is 9, but partition main has 4" in capsys.readouterr().err
    assert not runs.exists()
