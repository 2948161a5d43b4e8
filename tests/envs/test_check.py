"""The golden scan in sandboxes of every provider."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from glm52_tbench2 import cli
from glm52_tbench2.config.paths import DATA
from glm52_tbench2.envs.dockerfile import pack_tests
from glm52_tbench2.tasks.sets import load_set

from .conftest import PROVIDERS, Server, has_engine
from .standin_daytona import KEY

FIRST = load_set("mini/eval20").ids[:2]


@pytest.fixture
def scan(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, list[dict]]]:
    """scan(*arguments): exit code, what was printed, the results that were kept."""
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    for name in load_set("mini/eval20").ids:
        (tasks / name).symlink_to(DATA / "mini" / "tasks" / name)

    def run(*arguments: str) -> tuple[int, str, list[dict]]:
        out = tmp_path / "out"
        code = cli.main(
            [
                "tasks",
                "check",
                "mini/eval20",
                "--out",
                str(out),
                "--tasks-dir",
                str(tasks),
                *arguments,
            ]
        )
        told = capfd.readouterr()
        assert code != 2, told.err
        kept = [json.loads(line) for path in out.glob("*") for line in path.open() if line.strip()]
        return code, told.out, kept

    return run


@pytest.mark.parametrize("provider", [*PROVIDERS, "external"])
def test_a_sound_set_passes_on_every_provider_and_is_not_run_twice(
    provider: str,
    scan: Callable[..., tuple[int, str, list[dict]]],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    arguments = [f"sandbox={provider}", "--parallel", "3"]
    monkeypatch.setattr("glm52_tbench2.tasks.named.load_set", lambda name: Few)
    if provider == "docker" and not has_engine():
        monkeypatch.setenv("PATH", request.getfixturevalue("engine").path)
    if provider == "daytona":
        service = request.getfixturevalue("daytona_service")
        service.reset()
        monkeypatch.setenv("DAYTONA_API_URL", service.url)
        monkeypatch.setenv("DAYTONA_API_KEY", KEY)
    if provider == "external":
        server = Server(tmp_path / "run", DATA / "mini" / "tasks", max_concurrent=4)
        request.addfinalizer(server.stop)
        arguments.append(f"sandbox.url={server.url}")
    code, said, kept = scan(*arguments)
    assert (code, len(kept)) == (0, 6)
    assert "2 tasks, 6 attempts: all score what they must." in said
    assert "out/mini-eval20-" in said
    assert scan(*arguments)[2] == kept


class Few:
    """A set of two tasks."""

    ids = FIRST


def test_a_failure_is_shown_and_kept_with_its_evidence(
    scan: Callable[..., tuple[int, str, list[dict]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("glm52_tbench2.tasks.named.load_set", lambda name: Few)
    task = tmp_path / "tasks" / FIRST[0]
    source = task.resolve()
    task.unlink()
    subprocess.run(["cp", "-r", source, task], check=True)
    (task / "tests" / "test.sh").write_text("echo why; echo 0 > /logs/verifier/reward.txt\n")
    code, said, kept = scan()
    assert code == 1
    assert f"{FIRST[0]}: solution must score 1, but: scored 0.0\n    | why\n" in said
    (failed,) = [one for one in kept if one["reward"] != one["expected"]]
    assert (failed["task"], failed["attempt"], failed["output"]) == (FIRST[0], "solution", "why\n")
    (task / "tests" / "test.sh").write_text((source / "tests" / "test.sh").read_text())
    pack_tests.cache_clear()
    assert scan()[0] == 0  # of a task that has changed nothing counts


def test_an_interrupt_ends_it_at_once_and_the_next_scan_goes_on(tmp_path: Path) -> None:
    code = "import sys; from glm52_tbench2.cli import main; sys.exit(main())"
    # One attempt at a time, so that the scan is still on when it is interrupted.
    arguments = ["tasks", "check", "mini", "--parallel", "1", "--out", str(tmp_path)]
    command = [sys.executable, "-c", code, *arguments]
    scan = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ})
    kept = tmp_path / "mini-local.jsonl"
    deadline = time.monotonic() + 60
    while not kept.exists() or not kept.read_text().count("key") > 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    scan.send_signal(signal.SIGINT)
    said, _ = scan.communicate(timeout=30)
    assert scan.returncode == 130
    assert str(kept) in said
    assert 3 < kept.read_text().count("key") < 267


def test_where_no_sandbox_can_be_made_no_results_are_promised(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["sandbox=external", "sandbox.url=http://127.0.0.1:9", "--out", str(tmp_path)]
    assert cli.main(["tasks", "check", "mini8", *arguments]) == 2
    told = capfd.readouterr()
    assert "no environment server answers" in told.err
    assert not told.out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["optim.lr=1"], "Only the sandbox can be chosen here"),
        (["sandbox=podman"], "There is no sandbox 'podman'"),
        (["sandbox=external"], "sandbox.url=http://HOST:PORT"),
        (["--parallel", "0"], "above 0"),
    ],
)
def test_what_cannot_be_scanned_is_one_sentence(
    arguments: list[str], told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tasks", "check", "mini8", *arguments]) == 2
    said = capfd.readouterr().err
    assert told in said
    assert said.count("\n") == 1
