import json
import os
import select
import subprocess
import sys
from dataclasses import replace

import pytest

from glm52_tbench2.config.checkout import machine, sources
from glm52_tbench2.config.compose import load_run_config, save_run_config
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.identity import load_identity
from glm52_tbench2.config.schema import Scheduler
from glm52_tbench2.launch.run_folder import create, last_checkpoint, lock, open_for_resume


def test_a_run_folder_holds_the_run_and_who_it_is(smoke):
    run_dir = create(smoke)
    assert run_dir.name.startswith("smoke-")
    assert load_run_config(run_dir) == smoke
    assert load_identity(run_dir)[1] == []


def test_two_runs_started_in_one_second_get_two_folders(smoke):
    assert len({create(smoke) for _ in range(3)}) == 3


def test_a_folder_that_cannot_be_written_is_told_in_a_sentence(smoke, tmp_path):
    (tmp_path / "file").touch()
    smoke.runs_dir = str(tmp_path / "file" / "runs")
    with pytest.raises(UserError, match="runs_dir="):
        create(smoke)


def test_the_same_run_goes_on(smoke):
    assert open_for_resume(create(smoke), allow=False) == smoke


def test_another_run_does_not_go_on_in_the_folder_and_what_differs_is_named(smoke):
    run_dir = create(smoke)
    save_run_config(replace(smoke, seed=7), run_dir)
    with pytest.raises(UserError, match="config seed: 1 -> 7"):
        open_for_resume(run_dir, allow=False)


def test_an_allowed_difference_is_recorded_and_not_asked_for_again(smoke):
    run_dir = create(smoke)
    before, _ = load_identity(run_dir)
    save_run_config(replace(smoke, seed=7), run_dir)
    assert open_for_resume(run_dir, allow=True).seed == 7
    after, history = load_identity(run_dir)
    assert after.hash == before.hash  # which its step files carry
    assert [entry["differences"] for entry in history] == [["config seed: 1 -> 7"]]
    assert open_for_resume(run_dir, allow=False).seed == 7
    assert len(load_identity(run_dir)[1]) == 1
    save_run_config(replace(smoke, seed=8), run_dir)
    with pytest.raises(UserError, match="config seed: 1 -> 8"):
        open_for_resume(run_dir, allow=False)


def test_going_back_to_what_the_run_was_started_as_is_recorded_and_needs_no_word(smoke):
    run_dir = create(smoke)
    other = replace(smoke, seed=7)
    for config in (other, smoke, other, other):
        save_run_config(config, run_dir)
        open_for_resume(run_dir, allow=config is other and not load_identity(run_dir)[1])
    (run_dir / "checkpoints/step_000004").mkdir(parents=True)
    (run_dir / "checkpoints/step_000004/STABLE").touch()
    save_run_config(smoke, run_dir)
    open_for_resume(run_dir, allow=False)
    _, history = load_identity(run_dir)
    seed = ["config seed: 1 -> 7"]
    assert [entry["differences"] for entry in history] == [seed, [], seed, []]
    assert [entry["after_step"] for entry in history] == [0, 0, 0, 4]
    assert history[0]["time"] <= history[-1]["time"]


def test_code_that_changes_again_is_asked_for_again(smoke, monkeypatch):
    run_dir = create(smoke)
    now = sources()
    for content in ("0" * 64, "1" * 64):
        changed = {**now, "trainer/step.py": content}
        monkeypatch.setattr("glm52_tbench2.config.identity.sources", lambda found=changed: found)
        with pytest.raises(UserError, match=r"code: .* \(changed trainer/step\.py\)"):
            open_for_resume(run_dir, allow=False)
        open_for_resume(run_dir, allow=True)
        open_for_resume(run_dir, allow=False)


def test_an_interpreter_of_the_nodes_own_is_compared_on_nodes_alone(smoke, monkeypatch):
    smoke.cluster.scheduler, smoke.cluster.slurm.python = Scheduler.slurm, "/opt/env/bin/python"
    run_dir = create(smoke)

    def start(version, allow=False):
        with monkeypatch.context() as node:
            node.setattr("glm52_tbench2.config.identity._version", lambda package: version)
            open_for_resume(run_dir, allow, on_node=True)
        return load_identity(run_dir)

    first, history = start("2.0+cu")
    assert set(first.packages.values()) == {"2.0+cu"} and history == []
    assert first.made.machine == machine()
    assert first.hash == first.expected_hash()
    open_for_resume(run_dir, allow=False)  # here it is not compared
    with pytest.raises(UserError, match=r"package torch: 2\.0\+cu -> 3\.0\+cu"):
        start("3.0+cu")
    after, history = start("3.0+cu", allow=True)
    assert after == first and after.hash == first.hash
    assert len(history) == 1 and "package torch: 2.0+cu -> 3.0+cu" in history[0]["differences"]
    open_for_resume(run_dir, allow=False)
    assert start("3.0+cu") == (first, history)


def test_what_is_allowed_of_a_job_is_recorded_where_it_starts(smoke):
    smoke.cluster.scheduler = Scheduler.slurm
    run_dir = create(smoke)
    save_run_config(replace(smoke, seed=7), run_dir)
    open_for_resume(run_dir, allow=True)
    assert load_identity(run_dir)[1] == []
    open_for_resume(run_dir, allow=True, on_node=True)
    assert [one["differences"] for one in load_identity(run_dir)[1]] == [["config seed: 1 -> 7"]]


def test_refusals_name_files_and_folders_as_seen_from_here(smoke, monkeypatch):
    run_dir = create(smoke)
    monkeypatch.chdir(run_dir.parent)
    smoke.seed += 1
    save_run_config(smoke, run_dir)
    with pytest.raises(UserError) as refused:
        open_for_resume(run_dir, allow=False)
    assert str(refused.value).startswith(f"{run_dir.name} would go on as another run")
    assert str(refused.value).endswith(f"with: glm52 resume {run_dir.name} --allow")
    (run_dir / "identity.json").write_text("{")
    with pytest.raises(UserError, match=f"^{run_dir.name}/identity.json is damaged"):
        open_for_resume(run_dir, allow=False)
    (run_dir / "config.yaml").unlink()
    with pytest.raises(UserError, match=f"^{run_dir.name} is not a run folder"):
        open_for_resume(run_dir, allow=False)


def test_a_finished_run_does_not_go_on(smoke):
    run_dir = create(smoke)
    (run_dir / "finished").touch()
    with pytest.raises(UserError, match="finished all its"):
        open_for_resume(run_dir, allow=False)


def test_no_run_folder_is_told_as_such(tmp_path):
    with pytest.raises(UserError, match="not a run folder"):
        open_for_resume(tmp_path, allow=False)


def test_damaged_identity_is_told_as_such(smoke):
    run_dir = create(smoke)
    (run_dir / "identity.json").write_text(json.dumps({"hash": "x"}))
    with pytest.raises(UserError, match="damaged"):
        open_for_resume(run_dir, allow=False)


def test_only_complete_checkpoints_count(tmp_path):
    assert last_checkpoint(tmp_path) is None
    for step, stable in ((4, True), (12, True), (16, False)):
        folder = tmp_path / f"checkpoints/step_{step:06d}"
        folder.mkdir(parents=True)
        if stable:
            (folder / "STABLE").touch()
    assert last_checkpoint(tmp_path) == 12


CREATES = """
import sys, time
from pathlib import Path
from glm52_tbench2.config.compose import compose
from glm52_tbench2.launch.run_folder import create, lock
config = compose(["experiment=smoke", f"runs_dir={sys.argv[1]}"])
print("ready", flush=True)
input()
run_dir = create(config)
with lock(run_dir):
    (run_dir / "mine").mkdir()
    print(run_dir, flush=True)
"""


def test_processes_that_start_at_once_never_share_a_folder(tmp_path):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CREATES, str(tmp_path / "runs")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    folders = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert len(folders) == 4
    assert {str(path) for path in (tmp_path / "runs").iterdir()} == folders


def test_of_processes_that_want_one_folder_one_gets_it(tmp_path):
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    try:
        ready, _, _ = select.select([p.stderr for p in processes], [], [], 60)
        assert ready  # one was refused
        holder = int((tmp_path / ".lock").read_text())
        (held,) = (process for process in processes if process.pid == holder)
        for process in processes:
            if process is not held:
                assert f"process id {holder}" in process.communicate(timeout=60)[1]
        assert held.poll() is None
        assert held.stdout.readline() == "held\n"
    finally:
        for process in processes:
            process.kill()
            process.wait()


HOLDS = """
import sys, time
from pathlib import Path
from glm52_tbench2.launch.run_folder import lock
with lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_folder_in_use_is_refused_by_the_process_that_uses_it(tmp_path, holder):
    with (
        pytest.raises(UserError, match=f"in use by the supervisor with process id {holder.pid}"),
        lock(tmp_path),
    ):
        pass


def test_the_lock_of_a_killed_supervisor_is_free(tmp_path, holder):
    holder.kill()
    holder.wait()
    with lock(tmp_path):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())


def test_the_lock_lasts_as_long_as_the_roles_do(tmp_path):
    with lock(tmp_path) as fd:
        role = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(fd,)
        )
    free = [sys.executable, "-c", HOLDS, str(tmp_path)]
    (tmp_path / ".lock").write_text(str(os.getpid()))  # as if its supervisor were still there
    refused = subprocess.run(free, capture_output=True, text=True, timeout=60)
    assert "in use" in refused.stderr
    role.communicate(b"\n")
    with lock(tmp_path):
        pass
