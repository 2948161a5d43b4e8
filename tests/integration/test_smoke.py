"""The main job whole: every part real, killed in the middle, resumed, and repeated to the bit."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from glm52_tbench2.analysis.verify import verify_one, verify_two
from glm52_tbench2.config.identity import load_identity
from glm52_tbench2.config.paths import ROOT

STEPS = 4
OVERRIDES = [
    "experiment=smoke",
    f"steps={STEPS}",
    "eval.every=2",
    "eval.samples_per_task=1",
    "checkpoint.every=2",
    "rollout.prompts_per_step=2",
    "rollout.samples_per_prompt=4",
]
DEADLINE_S = 300


def glm52(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "glm52_tbench2.cli", *map(str, arguments)]


def only_run(runs_dir: Path) -> Path:
    (run_dir,) = (path for path in runs_dir.iterdir() if path.is_dir())
    return run_dir


def of_run(runs_dir: Path) -> list[psutil.Process]:
    """Processes whose command line or environment leads to a run in `runs_dir`."""
    found = []
    for process in psutil.process_iter():
        try:
            told = [*process.cmdline(), process.cwd(), *process.environ().values()]
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
        if process.pid != os.getpid() and any(str(runs_dir) in text for text in told):
            found.append(process)
    return found


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, f"never {what}"
        time.sleep(0.1)


def columns(path: Path, *names: str) -> dict[str, list]:
    return pq.read_table(path, columns=list(names)).to_pydict()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of an uninterrupted run."""
    runs_dir = tmp_path_factory.mktemp("whole")
    done = subprocess.run(
        glm52("train", *OVERRIDES, f"runs_dir={runs_dir}"),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "report.html" in done.stdout
    return only_run(runs_dir)


@pytest.fixture(scope="module")
def killed_and_resumed(whole: Path) -> Path:
    """The run folder of its rerun, killed -9 while it makes the batch of its third step."""
    runs_dir = whole.parent
    process = subprocess.Popen(glm52("rerun", whole), stdout=subprocess.DEVNULL)
    wait_until(
        lambda: len(list(runs_dir.glob("*/checkpoints/*2/STABLE"))) == 2, "a checkpoint of step 2"
    )
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(lambda: not of_run(runs_dir), "free of the killed run's processes")
    (run_dir,) = (path for path in runs_dir.iterdir() if path.is_dir() and path != whole)
    done = subprocess.run(
        glm52("resume", run_dir), capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return run_dir


def test_a_run_leaves_every_file_and_no_process(whole: Path) -> None:
    for step in range(1, STEPS + 1):
        assert (whole / "rollouts" / f"step_{step:06d}.parquet").is_file()
        assert (whole / "train" / f"step_{step:06d}.parquet").is_file()
    assert (whole / "eval" / "step_000000.parquet").is_file()
    assert (whole / "eval" / f"step_{STEPS:06d}.parquet").is_file()
    assert (whole / "report.html").stat().st_size > 10_000
    assert list((whole / "wandb").glob("offline-run-*"))
    assert of_run(whole.parent) == []


def test_the_readme_names_files_that_a_run_has(whole: Path) -> None:
    table = (ROOT / "README.md").read_text().partition("| in the run folder |")[2]
    named = [
        name
        for row in table.partition("\n\n")[0].splitlines()
        for name in re.findall(r"`([^`]+)`", row.split("|")[1] if "|" in row else "")
    ]
    assert len(named) > 8
    assert [n for n in named if not list(whole.glob(n.replace("ROLE", "*").rstrip("/")))] == []


def test_batches_come_from_the_weights_of_the_step_before(whole: Path) -> None:
    for step in range(1, STEPS + 1):
        batch = columns(whole / "rollouts" / f"step_{step:06d}.parquet", "weight_versions")
        versions = {v for row in batch["weight_versions"] for v in row}
        assert versions == {-1, step - 1}


def test_engine_and_trainer_agree_on_the_log_probs(whole: Path) -> None:
    """float32 on both sides: within 1e-3 nats a token, also after updates."""
    for step in (1, STEPS):
        name = f"step_{step:06d}.parquet"
        rollout = columns(whole / "rollouts" / name, "sample_id", "rollout_logprobs")
        trained = columns(whole / "train" / name, "sample_id", "trainer_logprobs")
        theirs = dict(zip(trained["sample_id"], trained["trainer_logprobs"], strict=True))
        for sample_id, logprobs in zip(
            rollout["sample_id"], rollout["rollout_logprobs"], strict=True
        ):
            assert theirs[sample_id] == pytest.approx(logprobs, abs=1e-3)


def test_every_file_of_both_is_whole(whole: Path, killed_and_resumed: Path) -> None:
    for run_dir in (whole, killed_and_resumed):
        told: list[str] = []
        assert verify_one(run_dir, told.append) == 0, told


def test_a_rerun_killed_and_resumed_is_the_whole_run_to_the_bit(
    whole: Path, killed_and_resumed: Path
) -> None:
    told: list[str] = []
    assert verify_two(whole, killed_and_resumed, everything=True, tell=told.append) == 0, told
    assert told[-1].startswith(f"Bit-identical: {STEPS} batches")
    assert f"weights and optimizer state after step 2, {STEPS}" in told[-1]


def test_a_rerun_has_the_identity_of_the_first_and_says_whose_it_is(
    whole: Path, killed_and_resumed: Path
) -> None:
    first, second = (load_identity(run_dir)[0] for run_dir in (whole, killed_and_resumed))
    assert second.hash == first.hash
    assert first.made is not None and first.made.origin is None
    assert second.made is not None and second.made.origin == {"rerun_of": whole.name}


def test_an_interrupt_says_how_to_resume_and_leaves_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen(
        glm52("train", *OVERRIDES, f"runs_dir={tmp_path}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until(lambda: any(tmp_path.glob("*/logs/engine*.log")), "an engine's log")
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "glm52 resume" in said
    assert of_run(tmp_path) == []
