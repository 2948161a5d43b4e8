"""One model evaluated by engines of its own, by another SGLang server and over chat completions."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pytest

from glm52_tbench2.analysis.verify import verify_one
from glm52_tbench2.config.identity import load_identity
from glm52_tbench2.config.paths import ROOT
from glm52_tbench2.engines import launch
from glm52_tbench2.rollout.batch import Sample, batch_path, read_batch, read_info

from .test_smoke import DEADLINE_S, glm52, of_run, only_run, wait_until

EACH = 2
OVERRIDES = ["experiment=smoke", "data.eval=mini/mini8", f"eval.samples_per_task={EACH}"]


def run(*arguments: str | Path) -> str:
    done = subprocess.run(glm52(*arguments), capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def samples_of(run_dir: Path) -> list[Sample]:
    return read_batch(batch_path(run_dir, "eval", 0))


def results_of(run_dir: Path) -> list[dict]:
    return [json.loads(line) for line in (run_dir / "results.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of an evaluation with an engine of its own, and what it printed."""
    runs_dir = tmp_path_factory.mktemp("own")
    said = run("eval", *OVERRIDES, f"runs_dir={runs_dir}")
    assert of_run(runs_dir) == []
    return only_run(runs_dir), said


@pytest.fixture(scope="module")
def server(own: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a server of the same model that no evaluation started."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "glm52_tbench2.engines.launch", "--run", str(own[0])]
    command += ["--index", "0", "--host", "127.0.0.1", "--port", str(port)]
    log = tmp_path_factory.mktemp("server") / "log"
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=log.open("wb"), stderr=subprocess.STDOUT, start_new_session=True
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: _answers(f"{url}/health"), "ready")
        yield url
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        launch.remove_scratch(own[0], 0)


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def test_it_prints_reward_and_pass_at_k_and_leaves_a_line_a_task(own: tuple[Path, str]) -> None:
    run_dir, said = own
    samples, lines = samples_of(run_dir), results_of(run_dir)
    assert len(samples) == 8 * EACH and len(lines) == 8
    passed = np.mean([line["passes"] > 0 for line in lines])
    (told,) = (line for line in said.splitlines() if line.split()[:1] == [f"pass@{EACH}"])
    assert float(told.split()[1]) == pytest.approx(passed, abs=5e-4)
    assert str(run_dir / "results.jsonl") in said
    problems: list[str] = []
    assert verify_one(run_dir, problems.append) == 0, problems
    assert "000000-0-0" in run("samples", run_dir, "--eval")


def test_another_server_of_the_model_scores_the_same_to_the_bit_also_when_killed(
    own: tuple[Path, str], server: str, tmp_path: Path
) -> None:
    process = subprocess.Popen(
        glm52(
            *("eval", *OVERRIDES, "engine=external", f"engine.url={server}"),
            # Two at a time: some are still to be played when it is killed.
            *("rollout.max_concurrent_samples=2", f"runs_dir={tmp_path}"),
        ),
        stdout=subprocess.DEVNULL,
    )
    pending = "*/eval/pending/*.safetensors"
    wait_until(lambda: len(list(tmp_path.glob(pending))) >= 3, "three samples")
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(lambda: not of_run(tmp_path), "free of the killed evaluation's processes")
    kept = len(list(tmp_path.glob(pending)))
    run_dir = only_run(tmp_path)
    said = run("resume", run_dir)
    for mine, theirs in zip(samples_of(run_dir), samples_of(own[0]), strict=True):
        assert np.array_equal(mine.tokens, theirs.tokens)
        assert np.array_equal(mine.rollout_logprobs, theirs.rollout_logprobs)
        assert (mine.reward, mine.end_reason) == (theirs.reward, theirs.end_reason)
    assert read_info(batch_path(run_dir, "eval", 0)).stats["taken_over"] == kept
    assert f"which had {kept} samples already" in said
    assert len({line["task_id"] for line in results_of(run_dir)}) == len(results_of(run_dir)) == 8
    assert [spec.stem for spec in (run_dir / "logs").glob("engine*")] == []


def test_chat_completions_of_that_server_are_the_same_policy(
    own: tuple[Path, str], server: str, tmp_path: Path
) -> None:
    """Its template, sampling and stop tokens are the project's own here: seed for seed."""
    said = run(
        "eval", *OVERRIDES, f"runs_dir={tmp_path}",
        "engine=external", "engine.api=openai", f"engine.url={server}/v1",
    )  # fmt: skip
    run_dir = only_run(tmp_path)
    samples, theirs = samples_of(run_dir), samples_of(own[0])
    assert [s.task_id for s in samples] == [s.task_id for s in theirs]
    assert [s.reward for s in samples] == [s.reward for s in theirs]
    assert [s.tokens.tolist() for s in samples] == [s.tokens.tolist() for s in theirs]
    assert all(not s.rollout_logprobs.any() for s in samples)
    counted = sum(line["counted_tokens"] for line in results_of(run_dir))
    assert counted == sum(s.num_generated for s in samples)
    assert f"{counted} as the endpoint counts them" in said
    made = load_identity(run_dir)[0].made
    assert made is not None and made.origin == {"served": [str(ROOT / "data" / "tiny"), None]}
