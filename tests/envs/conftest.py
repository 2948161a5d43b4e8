"""Small tasks, sandboxes of every provider, and a real environment server."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

import pytest
import uvicorn

from glm52_tbench2.config.compose import save_run_config
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.schema import RunConfig, SandboxConfig, SandboxProvider
from glm52_tbench2.envs import docker, providers
from glm52_tbench2.envs.core import ConcurrencyConfig, Environment, create_fastapi_app
from glm52_tbench2.envs.local import LocalSandbox
from glm52_tbench2.envs.models import Tbench2Action, Tbench2Observation
from glm52_tbench2.envs.sandbox import OpenSandbox, Sandbox
from glm52_tbench2.tasks.suite import Task, load_task

from .standin_daytona import KEY, StandInDaytona
from .standin_docker import StandInEngine

PROVIDERS = ("local", "docker", "daytona")
"""Each of these passes test_contract.py."""

CONFIG = SandboxConfig(
    provider=SandboxProvider.local,
    url=None,
    api_key_file=None,
    max_concurrent=16,
    max_starting=4,
    start_timeout_s=60.0,
    auto_stop_min=15,
    command_timeout_s=60.0,
    verifier_timeout_s=None,
    memory_mb=None,
    disk_mb=None,
    max_processes=64,
    output_bytes=10_000,
)
TOML = """
[agent]
timeout_sec = 30.0
[verifier]
timeout_sec = {verifier_s}
[environment]
memory_mb = 256
storage_mb = 32
"""
# Gives 1 when /app/done is a file.
IS_DONE = (
    "[ -f /app/done ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt"
)


def write_task(
    folder: Path,
    test: str = IS_DONE,
    dockerfile: str = "FROM debian\nWORKDIR /app\nCOPY files/ /app/\n",
    files: dict[str, str] | None = None,
    verifier_s: float = 120.0,
) -> Task:
    """A task on disk; `files` lie in its environment folder."""
    written = {
        "task.toml": TOML.format(verifier_s=verifier_s),
        "instruction.md": f"Do {folder.name}.\n",
        "environment/Dockerfile": dockerfile,
        "solution/solve.sh": "touch /app/done\n",
        "tests/test.sh": test,
    }
    written |= {f"environment/{n}": text for n, text in (files or {"files/a.txt": "a\n"}).items()}
    for name, text in written.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return load_task(folder)


@pytest.fixture
def make_task(tmp_path: Path) -> Callable[..., Task]:
    """Writes a task; arguments as of :func:`write_task`, without the folder."""
    return lambda **fields: write_task(tmp_path / "task", **fields)


def has_engine() -> bool:
    """Whether Docker itself is here."""
    try:
        docker.check()
    except UserError:
        return False
    return True


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInEngine]:
    """What stands in for Docker."""
    engine = StandInEngine(tmp_path_factory.mktemp("docker"))
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def daytona_service() -> Iterator[StandInDaytona]:
    """What stands in for Daytona."""
    service = StandInDaytona()
    yield service
    service.close()


@pytest.fixture(scope="session", params=PROVIDERS)
def provider(request: pytest.FixtureRequest) -> Iterator[OpenSandbox]:
    """How each provider opens a sandbox: Docker for real where it is, else its stand-in."""
    config = replace(CONFIG, provider=SandboxProvider[request.param])
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "docker" and not has_engine():
            patch.setenv("PATH", request.getfixturevalue("engine").path)
        if request.param == "daytona":
            patch.setenv("DAYTONA_API_URL", request.getfixturevalue("daytona_service").url)
            patch.setenv("DAYTONA_API_KEY", KEY)
        with providers.opened(config, f"test-{os.getpid()}") as open_sandbox:
            yield open_sandbox


@pytest.fixture
def start(
    provider: OpenSandbox, make_task: Callable[..., Task]
) -> Iterator[Callable[..., Sandbox]]:
    """start(config={...}, **task): a sandbox of the provider, closed after the test."""
    opened: list[Sandbox] = []

    def start(config: dict | None = None, **fields) -> Sandbox:
        sandbox = provider(make_task(**fields), replace(CONFIG, **(config or {})))
        opened.append(sandbox)
        return sandbox

    yield start
    for sandbox in opened:
        sandbox.close()


@pytest.fixture(scope="session")
def shared_task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """The plain task."""
    return write_task(tmp_path_factory.mktemp("tasks") / "plain")


@pytest.fixture(scope="module")
def sandbox(provider: OpenSandbox, shared_task: Task) -> Iterator[Sandbox]:
    """A sandbox of the plain task, shared by tests that leave it as usable as they found it."""
    with closing(provider(shared_task, CONFIG)) as sandbox:
        yield sandbox


@pytest.fixture
def local(shared_task: Task) -> Iterator[LocalSandbox]:
    """A local sandbox of the plain task."""
    with closing(LocalSandbox(shared_task, CONFIG)) as sandbox:
        yield sandbox


def processes_inside(sandbox: LocalSandbox) -> list[int]:
    """The sandbox's processes, as numbered on the machine."""
    found = []
    namespace = os.readlink(f"/proc/{sandbox._namespace.pid}/ns/pid")
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/ns/pid") == namespace:
                found.append(int(pid))
        except OSError:
            pass
    return found


def descendants(pid: int) -> list[int]:
    """Processes that `pid` has started, and all below them."""
    found, todo = [], [pid]
    while todo:
        for thread in Path(f"/proc/{todo.pop()}/task").glob("*/children"):
            children = list(map(int, thread.read_text().split()))
            found += children
            todo += children
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    """Waits, but not for ever."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


def none_of(pids: Iterable[int]) -> bool:
    """Whether all of them are gone, undead ones included."""
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def filled(schema: type) -> Any:
    """A config of which no knob is missing, whatever the values: the server reads few of them."""
    empty: dict[Any, Any] = {str: "", int: 1, float: 1.0, bool: False}

    def value(kind: Any) -> Any:
        if isinstance(kind, type) and is_dataclass(kind):
            return filled(kind)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return next(iter(kind))
        return empty[kind] if kind in empty else (get_origin(kind) or type(None))()

    def plain(kind: Any) -> Any:
        return next(iter(get_args(kind))) if isinstance(kind, UnionType) else kind

    return schema(**{field.name: value(plain(field.type)) for field in fields(schema)})


class Server:
    """A real server process of the tasks in `suite`."""

    def __init__(self, run: Path, suite: Path, **sandbox) -> None:
        self.run = run
        config = filled(RunConfig)
        config.data.tasks_dir = str(suite)
        config.sandbox = replace(CONFIG, **sandbox)
        save_run_config(config, run)
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        argv = ["--run", str(self.run), "--host", "127.0.0.1", "--port", str(self.port)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "glm52_tbench2.envs.server", *argv],
            env={**os.environ, "WANDB_API_KEY": "secret-of-the-host"},
        )
        while not self.healthy():
            assert self.process.poll() is None, "the server ended"
            time.sleep(0.05)

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal and waits for the end; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(30)


@pytest.fixture(scope="session")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the tasks that servers of these tests serve."""
    folder = tmp_path_factory.mktemp("suite")
    write_task(folder / "plain")
    write_task(folder / "silent", test="exit 0")
    write_task(folder / "broken", dockerfile="FROM debian\nRUN echo nonsense; false\n")
    return folder


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, suite: Path) -> Iterator[Server]:
    """A server with 16 places."""
    server = Server(tmp_path_factory.mktemp("run"), suite, max_concurrent=16, command_timeout_s=60)
    yield server
    server.stop()


@contextmanager
def serving(environment: type[Environment[Any, Any, Any]]) -> Iterator[str]:
    """URL of OpenEnv's own server of an environment with tbench2's actions."""
    app = create_fastapi_app(
        environment,
        Tbench2Action,
        Tbench2Observation,
        concurrency_config=ConcurrencyConfig(max_concurrent_envs=4),
        mode="simulation",
    )
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()
