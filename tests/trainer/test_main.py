"""The trainer role as a supervisor starts it: real processes, a real store, recorded batches."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import psutil
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from glm52_tbench2.config import metrics_log
from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.paths import ROOT
from glm52_tbench2.config.schema import RunConfig, SentinelAction
from glm52_tbench2.config.signals import STORE_VARIABLE, Signals
from glm52_tbench2.rollout.batch import batch_path, read_columns, write_batch
from glm52_tbench2.trainer.loop import BatchDamaged, TrainingLoop

from ..rollout.make import make_sample
from .parts import (
    IDENTITY,
    assert_same_metrics,
    layout,
    make_batch,
    make_run_dir,
    on_disk,
)

TIMEOUT_S = 240.0
ROLE = "glm52_tbench2.trainer.main"


def four_steps(run: RunConfig) -> RunConfig:
    return replace(run, steps=4, checkpoint=replace(run.checkpoint, every=2, keep_last=1))


@contextmanager
def trainer(
    run_dir: Path,
    ranks: int = 1,
    inside: Sequence[str] = (),
    program: Sequence[str] = ("-m", ROLE),
) -> Iterator[tuple[Signals, list[subprocess.Popen]]]:
    """The role's processes under a store of their own; killed in the end.

    `inside`: a command that runs the command which follows it. `program`: what Python runs.
    """
    signals, address = Signals.serve("127.0.0.1")
    signals.open()
    processes = []
    try:
        for rank in range(ranks):
            env = {
                **os.environ,
                STORE_VARIABLE: address,
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_RANK": str(rank),
            }
            processes.append(
                subprocess.Popen(
                    [*inside, sys.executable, *program, "--run", str(run_dir)],
                    env=env,
                    cwd=ROOT,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        yield signals, processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


class Engine:
    """An engine's endpoints of a weight update. The first update fails, as in a restart."""

    def __init__(self) -> None:
        self.folders: list[Path] = []
        self.fails = 1
        self.served = "none"
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if "model_path" in body:
                    if engine.fails:
                        engine.fails -= 1
                        return self.answer(503, {})
                    engine.folders.append(Path(body["model_path"]))
                engine.served = body.get("new_version", engine.served)
                self.answer(200, {})

            def do_GET(self) -> None:
                self.answer(200, {"weight_version": engine.served})

            def answer(self, status: int, body: dict) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *args) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"


def until(condition, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if process.poll() is not None:
            raise AssertionError(f"ended with {process.returncode}: {process.stderr.read()}")
        assert time.monotonic() < deadline
        time.sleep(0.05)


def finish(processes: list[subprocess.Popen]) -> list[str]:
    """What each process wrote to stderr; all must end with 0."""
    told = [process.communicate(timeout=TIMEOUT_S)[1] for process in processes]
    assert [p.returncode for p in processes] == [0] * len(processes), told
    return told


def metrics(run_dir: Path) -> dict[int, dict[str, float]]:
    return {
        step: {name: value for name, value in found.items() if not name.startswith("time/")}
        for step, found in metrics_log.read(run_dir)["trainer"].items()
    }


def logged(run_dir: Path) -> dict[int, dict[str, float]]:
    return metrics_log.read(run_dir)["trainer"]


def scores(run_dir: Path, step: int):
    names = ["sample_id", "trainer_logprobs", "entropy"]
    table = pq.read_table(batch_path(run_dir, "train", step))
    assert table.column_names == names
    return table.to_pydict()


def tensor_files(run_dir: Path, step: int) -> dict[str, str]:
    """Name -> sha256 of the files that hold a checkpoint's weights and optimizer state."""
    stable = run_dir / "checkpoints" / f"step_{step:06d}" / "STABLE"
    files = json.loads(stable.read_text())["files"]
    return {name: about["sha256"] for name, about in files.items() if name.endswith(".distcp")}


@pytest.fixture(scope="module")
def whole(run, tmp_path_factory):
    """A run of four recorded steps, trained without a break, and the versions it announced."""
    run_dir = make_run_dir(four_steps(run), tmp_path_factory.mktemp("whole") / "run", 4)
    with trainer(run_dir) as (signals, processes):
        until(lambda: signals.get("trainer/ready"), processes[0])
        listening = psutil.Process(processes[0].pid).net_connections("inet")
        finish(processes)
        ended = {key: signals.get(key) for key in ("done", "weights/version")}
    addresses = {c.laddr.ip for c in listening if c.status == psutil.CONN_LISTEN}
    return run_dir, ended, addresses


def test_a_recorded_run_is_trained_to_its_end(whole):
    run_dir, ended, _ = whole
    assert ended == {"done": "1", "weights/version": "4"}
    assert sorted(metrics(run_dir)) == [1, 2, 3, 4]
    assert [p.name for p in (run_dir / "checkpoints").iterdir()] == ["step_000004"]


def test_no_rank_listens_beyond_the_loopback(whole):
    assert whole[2] == {"127.0.0.1"}


def test_the_scores_of_a_step_belong_to_its_samples(run, whole):
    for step in (1, 4):
        batch = make_batch(run, step)
        found = read_columns(
            batch_path(whole[0], "train", step), ["sample_id", "trainer_logprobs"], IDENTITY, step
        )
        assert list(found["sample_id"]) == [s.sample_id for s in batch]
        for sample, logp in zip(batch, found["trainer_logprobs"], strict=True):
            assert ((logp != 0) == sample.loss_mask).all()


def test_metrics_say_where_the_time_went(whole):
    logged = metrics_log.read(whole[0])
    parts = ["wait", "compute", "forward_backward", "optimizer", "push", "step"]
    assert {f"time/train_{part}" for part in parts} <= logged["trainer"][4].keys()
    assert list(logged["checkpoint"]) == [2, 4]


def test_a_run_killed_and_resumed_equals_the_uninterrupted_one(run, whole, tmp_path):
    run_dir = make_run_dir(four_steps(run), tmp_path / "run", 3)
    with trainer(run_dir) as (_, processes):
        # The checkpoint is of step 2: step 3 is trained, and will have to be once more.
        until(lambda: 3 in metrics_log.read(run_dir).get("trainer", {}), processes[0])
        until(lambda: (run_dir / "checkpoints" / "step_000002" / "STABLE").exists(), processes[0])
        os.kill(processes[0].pid, signal.SIGKILL)
    write_batch(batch_path(run_dir, "rollouts", 4), make_batch(run, 4), IDENTITY, 4)
    with trainer(run_dir) as (signals, processes):
        told = finish(processes)
        assert signals.get("weights/version") == "4"
    assert "ready at step 2" in told[0]
    assert metrics(run_dir) == metrics(whole[0])
    for step in (1, 2, 3, 4):
        assert scores(run_dir, step) == scores(whole[0], step)
    assert tensor_files(run_dir, 4) == tensor_files(whole[0], 4)


# The role, killed on the spot: in the third update's second bucket, and when all of a checkpoint
# but its marker is there.
_DIES = """
import os, signal, sys, time
from pathlib import Path
from glm52_tbench2.trainer.cpu import install
install()
from glm52_tbench2.trainer import checkpoint_files, main
from glm52_tbench2.trainer.disk_adam.state_file import StateFile
write, mark, starts = StateFile.write, checkpoint_files.mark_stable, []

def write_or_die(self, version, start, bucket):
    starts.append((id(self), start))  # experts have a file of their own
    if starts.count((id(self), 0)) == 3 and start:
        while not list(Path(sys.argv[-1]).glob("checkpoints/step_000002/STABLE")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, version, start, bucket)

def mark_or_die(folder, step, files):
    if step == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    mark(folder, step, files)

StateFile.write, checkpoint_files.mark_stable = write_or_die, mark_or_die
sys.exit(main.main())
"""


@pytest.mark.parametrize("moment", ["in an update on disk", "before a checkpoint counts"])
def test_half_done_work_is_not_resumed_from(run, whole, tmp_path, moment):
    run = four_steps(run)
    run = on_disk(run, tmp_path / "state") if "on disk" in moment else run
    run_dir = make_run_dir(run, tmp_path / "run", 4)
    with trainer(run_dir, program=["-c", _DIES]) as (_, processes):
        assert processes[0].wait(TIMEOUT_S) == -signal.SIGKILL
    begun = sorted(path.name for path in (run_dir / "checkpoints").iterdir())
    assert begun == ["step_000002", *(["step_000004"] if "counts" in moment else [])]
    with trainer(run_dir) as (_, processes):
        told = finish(processes)
    assert "ready at step 2" in told[0]
    assert_same_metrics(list(metrics(run_dir).values()), list(metrics(whole[0]).values()))
    for step in (3, 4):
        assert scores(run_dir, step) == scores(whole[0], step)
    assert not list(tmp_path.glob("state/*"))


def test_a_job_that_is_about_to_end_gets_a_whole_checkpoint_of_its_last_step(run, tmp_path):
    run_dir = make_run_dir(four_steps(run), tmp_path / "run", 3)
    stable = run_dir / "checkpoints" / "step_000003" / "STABLE"
    with trainer(run_dir) as (signals, processes):
        until(lambda: 3 in trained(run_dir), processes[0])
        assert not stable.exists()
        signals.publish("checkpoint/wanted", "1")
        until(lambda: signals.get("checkpoint/saved"), processes[0])
        assert signals.get("checkpoint/saved") == "3"
        assert stable.exists()
        # None that a kill would leave behind.
        assert psutil.Process(processes[0].pid).children(recursive=True) == []


def test_versions_that_no_engine_needs_are_not_announced(run, tmp_path):
    run_dir = make_run_dir(four_steps(run), tmp_path / "run", 2)
    seen = []
    with trainer(run_dir) as (signals, processes):

        def last_recorded_is_trained() -> bool:
            if (version := signals.get("weights/version")) not in (None, *seen):
                seen.append(version)
            return bool(seen)

        until(last_recorded_is_trained, processes[0])
    assert seen == ["2"]


def test_a_recorded_batch_that_is_gone_is_made_anew_of_these_weights(tmp_path, monkeypatch):
    """The driver finds it damaged after the trainer has counted it, and waits for weights."""
    loop = TrainingLoop.__new__(TrainingLoop)
    loop.run_dir, loop.rank, loop.step, loop.recorded, loop.identity = tmp_path, 0, 1, 3, "id"
    loop.signals = SimpleNamespace(get=lambda key: None)
    loop.watch = SimpleNamespace(paused=lambda: False)
    loop.saver, loop.config = SimpleNamespace(failed=False), compose(["experiment=smoke"])
    monkeypatch.setattr("torch.distributed.broadcast_object_list", lambda *a, **k: None)
    monkeypatch.setattr(loop, "_engines_behind", list)

    def push():
        assert loop.recorded == loop.step
        write_batch(batch_path(tmp_path, "rollouts", 2), [make_sample(step=2)], "id", 2)

    monkeypatch.setattr(loop, "_push", push)
    assert len(loop._next_batch(2)) == 1


def test_a_damaged_batch_that_another_reader_has_moved_asks_to_start_again(tmp_path, monkeypatch):
    loop = TrainingLoop.__new__(TrainingLoop)
    loop.run_dir, loop.rank, loop.step, loop.recorded, loop.identity = tmp_path, 1, 1, 3, "id"
    loop.saver = SimpleNamespace(failed=False, wait=lambda: None)
    loop.config = compose(["experiment=smoke"])

    def told(seen, src):
        seen[0].batch = True

    monkeypatch.setattr("torch.distributed.broadcast_object_list", told)
    monkeypatch.setattr("glm52_tbench2.trainer.loop._appears", lambda *a: True)
    with pytest.raises(BatchDamaged, match=r"step_000002\.parquet.*to be made again"):
        loop._next_batch(2)


def test_two_ranks_train_as_one(run, whole, tmp_path):
    two = layout(four_steps(run), 2)
    run_dir = make_run_dir(two, tmp_path / "run", 4)
    with trainer(run_dir, ranks=2) as (_, processes):
        finish(processes)
    expected = metrics(whole[0])
    for step, found in metrics(run_dir).items():
        for name in ("trainer/loss", "trainer/grad_norm", "trainer/train_rollout_kl"):
            assert found[name] == pytest.approx(expected[step][name], rel=1e-3)


def test_engines_get_the_starting_weights_and_those_of_each_step(run, tmp_path):
    with_engine = replace(four_steps(run), steps=2, engine=replace(run.engine, num_engines=1))
    run_dir = make_run_dir(with_engine, tmp_path / "run", 0)
    lost = run_dir / "weights" / "version_000007"  # of a batch that is no longer there
    lost.mkdir(parents=True)
    engine = Engine()
    with trainer(run_dir) as (signals, processes):
        until(lambda: signals.get("trainer/ready"), processes[0])
        assert signals.get("weights/version") is None
        signals.publish("engine/0", engine.url)
        for version in ("0", "1"):
            until(lambda: signals.get("weights/version") == version, processes[0])  # noqa: B023
            assert engine.served == version
            step = int(version) + 1
            write_batch(
                batch_path(run_dir, "rollouts", step), make_batch(run, step), IDENTITY, step
            )
        finish(processes)
    assert engine.served == "2"
    assert all(found["time/engine_pause_max"] > 0 for found in logged(run_dir).values())
    names = [folder.name for folder in engine.folders]
    assert names == [Path(run.model.path).name, "version_000001", "version_000002"]
    assert not lost.exists()
    before = load_file(Path(run.model.path) / "model.safetensors")
    after = load_file(next(engine.folders[-1].glob("*.safetensors")))
    assert before.keys() == after.keys()
    assert not torch.equal(before["lm_head.weight"], after["lm_head.weight"])
    engine.server.shutdown()


def test_an_engine_that_restarts_gets_the_weights_while_the_trainer_waits(run, tmp_path):
    with_engines = replace(four_steps(run), engine=replace(run.engine, num_engines=2))
    two_ranks = layout(with_engines, 2)
    run_dir = make_run_dir(two_ranks, tmp_path / "run", 1)
    engines = [Engine(), Engine()]
    with trainer(run_dir, ranks=2) as (signals, processes):
        for number, engine in enumerate(engines):
            signals.publish(f"engine/{number}", engine.url)
        until(lambda: signals.get("weights/version") == "1", processes[0])
        loaded = [len(engine.folders) for engine in engines]
        signals.withdraw("engine/0")  # it is down: nobody waits for it
        engines[1].served = "none"
        until(lambda: engines[1].served == "1", processes[0])
        assert [len(engine.folders) for engine in engines] == [loaded[0], loaded[1] + 1]
        assert engines[1].folders[-1] == run_dir / "weights" / "version_000001"
        write_batch(batch_path(run_dir, "rollouts", 2), make_batch(run, 2), IDENTITY, 2)
        until(lambda: 2 in trained(run_dir), processes[0])
    for engine in engines:
        engine.server.shutdown()


def trained(run_dir: Path) -> set[int]:
    return {int(path.stem.removeprefix("step_")) for path in (run_dir / "train").glob("*.parquet")}


def test_a_damaged_batch_is_moved_aside_and_the_trainer_asks_to_start_again(run, tmp_path):
    run_dir = make_run_dir(four_steps(run), tmp_path / "run", 1)
    path = batch_path(run_dir, "rollouts", 1)
    path.write_bytes(path.read_bytes()[:1000])
    with trainer(run_dir) as (_, processes):
        _, told = processes[0].communicate(timeout=TIMEOUT_S)
        assert processes[0].returncode == 75
    assert "step_000001.parquet is not a whole step file" in told.splitlines()[-1]
    assert [p.name for p in path.parent.iterdir()] == ["step_000001.parquet.corrupt"]


def test_a_batch_of_another_run_is_one_sentence(run, tmp_path):
    run_dir = make_run_dir(four_steps(run), tmp_path / "run", 0)
    path = batch_path(run_dir, "rollouts", 1)
    write_batch(path, make_batch(run, 1), "someone-elses-id", 1)
    with trainer(run_dir) as (_, processes):
        _, told = processes[0].communicate(timeout=TIMEOUT_S)
        assert processes[0].returncode == 2
    assert "belongs to a run of identity someone-elses-id" in told.splitlines()[-1]
    assert path.exists()


def test_a_full_disk_is_one_sentence_and_costs_no_finished_checkpoint(run, whole, tmp_path):
    every_step = replace(run, checkpoint=replace(run.checkpoint, every=1, keep_last=2))
    run_dir = make_run_dir(every_step, tmp_path / "run", 2)
    folder = run_dir / "checkpoints"
    one = sum(f.stat().st_size for f in (whole[0] / "checkpoints").rglob("*") if f.is_file())
    small_disk = ["bwrap", "--die-with-parent", "--dev-bind", "/", "/"]
    small_disk += ["--size", str(int(one * 1.6)), "--tmpfs", str(folder)]
    look = ["sh", "-c", f'"$@"; code=$?; ls {folder} {folder}/*; exit $code', "sh"]
    with trainer(run_dir, inside=[*small_disk, *look]) as (_, processes):
        left, told = processes[0].communicate(timeout=TIMEOUT_S)
        assert processes[0].returncode == 2, told
    sentence = told.splitlines()[-1]
    assert (
        "is full, so the checkpoint of step 2 was not written; that of step 1 is whole" in sentence
    )
    assert "STABLE" in left
    assert "step_000002" not in left


def alarmed(run, action: SentinelAction):
    """The run with an alarm at its first step."""
    sentinel = replace(run.sentinel, action=action, actions={}, visits=0.5)
    return replace(run, steps=2, sentinel=sentinel)


def test_an_alarm_can_stop_a_run_which_resumes_all_the_same(run, tmp_path):
    run_dir = make_run_dir(alarmed(run, SentinelAction.stop), tmp_path / "run", 2)
    with trainer(run_dir) as (_, processes):
        _, told = processes[0].communicate(timeout=TIMEOUT_S)
        assert processes[0].returncode == 2
    assert "The sentinel stopped the run after step 1 (visits" in told.splitlines()[-1]
    assert [p.parent.name for p in run_dir.rglob("STABLE")] == ["step_000001"]
    with trainer(run_dir) as (_, processes):
        finish(processes)
    assert trained(run_dir) == {1, 2}


def test_an_alarm_can_pause_a_run_until_somebody_lets_it_go_on(run, tmp_path):
    run_dir = make_run_dir(alarmed(run, SentinelAction.pause), tmp_path / "run", 2)
    paused = run_dir / "paused"
    with trainer(run_dir) as (_, processes):
        until(lambda: any(run_dir.rglob("STABLE")), processes[0])
        assert "visits" in paused.read_text()
        assert [p.parent.name for p in run_dir.rglob("STABLE")] == ["step_000001"]
        time.sleep(1)
        assert trained(run_dir) == {1}
        paused.unlink()
        finish(processes)
    assert trained(run_dir) == {1, 2}


def test_a_pause_whose_checkpoint_cannot_be_written_outlasts_a_resume(run, tmp_path):
    """As one of a run that is killed between its alarm and its checkpoint."""
    run_dir = make_run_dir(alarmed(run, SentinelAction.pause), tmp_path / "run", 2)
    paused, folder = run_dir / "paused", run_dir / "checkpoints"
    folder.write_text("in the way")
    with trainer(run_dir) as (_, processes):
        processes[0].communicate(timeout=TIMEOUT_S)
        assert processes[0].returncode
    assert "visits" in paused.read_text()
    folder.unlink()
    (run_dir / "train" / "step_000001.parquet").unlink()
    with trainer(run_dir) as (signals, processes):
        until(lambda: signals.get("trainer/ready"), processes[0])
        time.sleep(1)
        assert trained(run_dir) == set()
        paused.unlink()
        until(lambda: any(run_dir.rglob("STABLE")), processes[0])
        assert paused.exists()  # the same step opens the same alarm
        paused.unlink()
        finish(processes)
    assert trained(run_dir) == {1, 2}


def test_a_stop_is_prompt(run, tmp_path):
    run_dir = make_run_dir(four_steps(run), tmp_path / "run", 0)
    with trainer(run_dir) as (signals, processes):
        until(lambda: signals.get("weights/version"), processes[0])
        processes[0].terminate()
        assert processes[0].wait(30) == -signal.SIGTERM
