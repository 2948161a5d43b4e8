"""The tracker as a real process, and what wandb keeps of a run."""

import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tokenizers import Tokenizer
from wandb.proto import wandb_internal_pb2

from glm52_tbench2.analysis.track import follow, run_id, track
from glm52_tbench2.config import metrics_log
from glm52_tbench2.config.paths import ROOT

from .fake_run import FakeRun

SECRET = "0123456789abcdef0123456789abcdef01234567"
DEADLINE_S = 240.0


@dataclass
class Kept:
    """What one offline wandb folder holds."""

    run: Any
    config: dict[str, Any]
    history: list[dict[str, Any]]
    exit_code: int | None
    axes: dict[str, str]


def logged_records(log: bytes) -> Iterator[bytes]:
    """wandb's transaction log: LevelDB's log format behind a header of 7 bytes."""
    block, at, whole = 32768, 7, b""
    while at + 7 <= len(log):
        left = block - at % block
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", log, at + 4)
        whole += log[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield whole
            whole = b""


def kept(folder: Path) -> Kept:
    found = Kept(None, {}, [], None, {})
    for data in logged_records(next(folder.glob("*.wandb")).read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found.run = record.run
            updates = record.run.config.update
            found.config = {u.key: json.loads(u.value_json) for u in updates}
        elif kind == "history":
            items = record.history.item
            found.history.append(
                {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}
            )
        elif kind == "exit":
            found.exit_code = record.exit.exit_code
        elif kind == "metric":
            name = record.metric.name or record.metric.glob_name
            found.axes[name] = record.metric.step_metric
    return found


def folders(run_dir: Path) -> list[Path]:
    return sorted(run_dir.glob("wandb/offline-run-*"), key=lambda p: p.stat().st_mtime)


@contextmanager
def tracker(run_dir: Path) -> Iterator["subprocess.Popen[str]"]:
    """The role as a process of its own; whatever is left of it at the end is killed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "glm52_tbench2.analysis.track", "--run", str(run_dir)],
        cwd=ROOT,
        env={**os.environ, "WANDB_API_KEY": SECRET, "SOME_TOKEN": SECRET},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def until(process: "subprocess.Popen[str]", holds: Callable[[], object]) -> None:
    give_up = time.monotonic() + DEADLINE_S
    while not holds():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < give_up
        time.sleep(0.2)


@pytest.fixture(scope="module")
def tracked(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run tracked while it is written: stopped in the middle, started again, finished."""
    run_dir = tmp_path_factory.mktemp("tracked") / "smoke: 1129"
    FakeRun(run_dir, tokenizer, steps=3).write(upto=2, eval_every=2, finished=False)
    with tracker(run_dir) as first:
        until(first, lambda: folders(run_dir))
        first.send_signal(signal.SIGTERM)
        assert first.wait(DEADLINE_S) == 128 + signal.SIGTERM, first.communicate()
    with tracker(run_dir) as second:
        until(second, lambda: len(folders(run_dir)) == 2)
        metrics_log.append(run_dir, 3, "trainer", {"trainer/loss": 0.25})
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(metrics_log.DEFINITIONS, "trainer/entropy", 2)
            metrics_log.append(run_dir, 3, "trainer", {"trainer/loss": 0.25, "trainer/entropy": 1})
        (run_dir / "finished").write_text("now\n")
        output = second.communicate(timeout=DEADLINE_S)
        assert second.returncode == 0, output
    yield run_dir


def test_sigterm_flushes_what_was_read(tracked: Path) -> None:
    found = kept(folders(tracked)[0])
    assert found.exit_code == 143
    assert [(h["step"], h["_step"]) for h in found.history] == [
        (0, 0), (1, 1), (1, 2), (2, 3), (2, 4), (2, 5)
    ]  # fmt: skip


def test_a_restarted_tracker_keeps_every_record_and_those_of_a_live_run(tracked: Path) -> None:
    found = kept(folders(tracked)[1])
    assert found.exit_code == 0
    assert found.history[-1]["step"] == 3
    assert found.history[-1]["trainer/loss"] == 0.25
    rows = [json.loads(line) for line in (tracked / "metrics.jsonl").read_text().splitlines()]
    logged = [{k: v for k, v in h.items() if not k.startswith("_")} for h in found.history]
    assert logged[:-1] == [{**row["metrics"], "step": row["step"]} for row in rows[:-1]]
    # Not the curve of before: its definition is another one.
    assert logged[-1] == {"trainer/loss": 0.25, "trainer/entropy@2": 1, "step": 3}


def test_every_curve_is_drawn_over_the_training_step(tracked: Path) -> None:
    axes = kept(folders(tracked)[1]).axes
    assert axes["*"] == "step"


def test_a_run_is_known_by_its_folder_its_knobs_and_its_identity(tracked: Path) -> None:
    found = kept(folders(tracked)[1])
    assert found.run.run_id == run_id(tracked) == "smoke--1129"
    assert found.run.display_name == "smoke: 1129"
    assert found.config["rollout.prompts_per_step"] == 8
    assert found.config["clip.correction"] == "tis"
    identity = found.config["identity"]
    assert (identity["hash"], identity["code"]) == ("0123456789abcdef", "2" * 64)
    assert identity["tasks"] == {"mini/train69": "3" * 64}
    assert identity["made"] == {"revision": "f" * 40, "changes": "abc", "origin": None}


def test_wandb_is_told_nothing_of_the_machine(tracked: Path) -> None:
    found = kept(folders(tracked)[1])
    assert not found.run.HasField("git")
    assert found.run.host == "undisclosed"
    assert not list(tracked.rglob("wandb-metadata.json"))
    assert not list(tracked.rglob("requirements.txt"))
    assert not list(tracked.rglob("output.log"))


def test_a_resumed_online_run_is_not_given_what_it_has(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Resumed:
        starting_step = 50
        logged: ClassVar[list[int]] = []

        def log(self, record: dict[str, Any], step: int) -> None:
            self.logged.append(step)

        def finish(self, exit_code: int) -> None:
            assert exit_code == 0

    monkeypatch.setattr("glm52_tbench2.analysis.track._start", lambda *_: Resumed())
    track(finished_run, threading.Event())
    lines = (finished_run / "metrics.jsonl").read_text().count("\n")
    assert Resumed.logged == list(range(50, lines))


def test_no_secret_of_the_environment_is_kept(tracked: Path) -> None:
    files = [path for path in (tracked / "wandb").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


def test_a_disabled_tracker_ends_at_once(finished_run: Path, tmp_path: Path) -> None:
    config = (finished_run / "config.yaml").read_text()
    assert "wandb: offline" in config
    (tmp_path / "config.yaml").write_text(config.replace("wandb: offline", "wandb: disabled"))
    with tracker(tmp_path) as process:
        output = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output
    assert not (tmp_path / "wandb").exists()


def test_a_folder_that_is_no_run_gets_one_sentence(tmp_path: Path) -> None:
    with tracker(tmp_path) as process:
        _, error = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    assert error == f"{tmp_path} is not a run folder: it has no config.yaml.\n"


def test_lines_cut_by_a_kill_are_left_out_and_keep_their_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = '{"step": 1, "source": "driver", "time": 0, "metrics": {"a": 1}}\n'
    path = tmp_path / "metrics.jsonl"
    path.write_text(record + record[:20] + "\n" + '"no record"\n' + record + record[:30])
    (tmp_path / "finished").touch()
    numbers = [n for n, _ in follow(path, tmp_path / "finished", threading.Event())]
    assert numbers == [0, 3]
    assert "line 2 is no record" in capsys.readouterr().err


def test_following_waits_for_a_line_to_be_whole(tmp_path: Path) -> None:
    path, stopped = tmp_path / "metrics.jsonl", threading.Event()
    record = '{"step": 1, "source": "driver", "time": 0, "metrics": {"a": 1}}\n'
    path.write_text(record + record[:30])
    found = follow(path, tmp_path / "finished", stopped)
    assert next(found)[0] == 0
    with path.open("a") as file:
        file.write(record[30:])
    assert next(found) == (1, json.loads(record))
    stopped.set()
    assert list(found) == []


def test_points_of_two_sweeps_have_two_ids(tmp_path: Path) -> None:
    long = ["a" * 90 + end for end in ("=1", "=2")]
    runs = [tmp_path / sweep / point for sweep in ("s1", "s2") for point in ("seed=1", *long)]
    for run in runs:
        run.mkdir(parents=True)
        (run.parent / "sweep.json").touch()
    ids = [run_id(run) for run in runs]
    assert ids[0] == "s1-seed-1"
    assert len(set(ids)) == len(ids)
    assert max(map(len, ids)) <= 64
