"""Nothing outlives its sandbox: no process, no file, no open descriptor."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from glm52_tbench2.envs.local import LocalSandbox
from glm52_tbench2.envs.sandbox import SandboxError
from glm52_tbench2.tasks.suite import Task

from .conftest import CONFIG, descendants, none_of, processes_inside, wait_until

DAEMONS = "sleep 300 & (setsid sleep 300 &) ; trap '' TERM INT HUP; (nohup sleep 300 &)"
HOLDER = """
import sys, threading, time
from pathlib import Path
from glm52_tbench2.envs.local import LocalSandbox
from glm52_tbench2.tasks.suite import load_task
from tests.envs.conftest import CONFIG

sandbox = LocalSandbox(load_task(Path(sys.argv[1])), CONFIG)
sandbox.exec(sys.argv[2], 60.0)
print("ready", flush=True)
sandbox.exec("kill -STOP $$", 300.0)
"""


def of_our_own() -> set[int]:
    """Our children, alive or undead."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return set(map(int, children.split()))


def test_closing_ends_every_process_and_closes_every_file(
    shared_task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with closing(LocalSandbox(shared_task, CONFIG)):
        pass  # what is opened once is open now
    threads, files, children = threading.active_count(), os.listdir("/proc/self/fd"), of_our_own()
    sandbox = LocalSandbox(shared_task, CONFIG)
    sandbox.exec(DAEMONS, 60.0)
    sandbox.exec("sleep 300", 0.2)
    sandbox.exec("exit", 60.0)
    sandbox.exec("kill -STOP $$", 0.2)
    sandbox.exec(DAEMONS, 60.0)
    sandbox.verify()
    inside = processes_inside(sandbox)
    assert len(inside) >= 7
    assert not list(tmp_path.iterdir())
    sandbox.close()
    assert none_of(inside)
    assert of_our_own() <= children
    assert len(os.listdir("/proc/self/fd")) == len(files)
    assert threading.active_count() == threads


def test_a_failed_start_leaves_nothing(make_task: Callable[..., Task]) -> None:
    task = make_task(dockerfile="FROM x\nWORKDIR /app\nRUN sleep 300 & false\n")
    with pytest.raises(SandboxError):
        LocalSandbox(task, CONFIG)
    files, children = len(os.listdir("/proc/self/fd")), of_our_own()
    with pytest.raises(SandboxError):
        LocalSandbox(task, CONFIG)
    assert len(os.listdir("/proc/self/fd")) == files
    assert of_our_own() <= children


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["kill -9", "kill"])
def test_a_sandbox_dies_with_its_owner(shared_task: Task, number: int) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(shared_task.path), DAEMONS],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n"
    # Its shell is stopped by now, and with it what waits for the shell out here.
    wait_until(lambda: any(state(pid) == "T" for pid in descendants(owner.pid)))
    below = descendants(owner.pid)
    assert len(below) >= 7
    owner.send_signal(number)
    owner.wait()
    wait_until(lambda: none_of(below))


def state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def test_a_sandbox_outlives_the_thread_that_opened_it(shared_task: Task) -> None:
    opened: list[LocalSandbox] = []
    thread = threading.Thread(target=lambda: opened.append(LocalSandbox(shared_task, CONFIG)))
    thread.start()
    thread.join()
    with closing(opened[0]) as sandbox:
        time.sleep(0.2)
        assert sandbox.exec("echo alive", 60.0).output == "alive\n"


def test_closing_ends_a_command_that_runs(shared_task: Task) -> None:
    sandbox = LocalSandbox(shared_task, CONFIG)
    failures: list[SandboxError] = []

    def wait() -> None:
        try:
            sandbox.exec("sleep 300", 300.0)
        except SandboxError as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.3)
    sandbox.close()
    thread.join(30)
    assert not thread.is_alive()
    assert len(failures) == 1


def test_a_sandbox_that_has_died_fails_and_can_be_closed(local: LocalSandbox) -> None:
    os.kill(local._namespace.pid, signal.SIGKILL)
    wait_until(lambda: not Path(local._namespace.proc).exists())
    with pytest.raises(SandboxError):
        local.exec("true", 60.0)
    with pytest.raises(SandboxError):
        local.exec("true", 60.0)
    local.close()
