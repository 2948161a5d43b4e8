"""What is special about containers of the local engine; what they share is in test_contract.py."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.schema import SandboxProvider
from glm52_tbench2.envs import docker, providers
from glm52_tbench2.envs.client import EnvSession
from glm52_tbench2.envs.sandbox import OpenSandbox, SandboxError
from glm52_tbench2.tasks.suite import Task

from .conftest import CONFIG, Server, write_task
from .standin_docker import StandInEngine

DOCKER = replace(CONFIG, provider=SandboxProvider.docker)


@pytest.fixture
def standin(engine: StandInEngine, monkeypatch: pytest.MonkeyPatch) -> StandInEngine:
    """The stand-in, in place of an engine that may be here."""
    monkeypatch.setenv("PATH", engine.path)
    engine.builds.clear()
    return engine


@pytest.fixture
def containers(standin: StandInEngine) -> Iterator[OpenSandbox]:
    """Opens containers of a run."""
    with providers.opened(DOCKER, "this-run") as open_sandbox:
        yield open_sandbox
    assert "glm52-tbench2.run=this-run" not in standin.labels.values()


def test_an_image_is_built_once_for_each_content(
    containers: OpenSandbox, standin: StandInEngine, tmp_path: Path
) -> None:
    task = write_task(tmp_path / "one", files={"files/a.txt": "of its own\n"})
    with ThreadPoolExecutor(4) as pool:
        for sandbox in pool.map(lambda _: containers(task, DOCKER), range(4)):
            assert sandbox.exec("cat a.txt", 60.0).output == "of its own\n"
            sandbox.close()
    assert len(standin.builds) == 1
    changed = write_task(tmp_path / "two", files={"files/a.txt": "another\n"})
    with closing(containers(changed, DOCKER)) as sandbox:
        assert sandbox.exec("cat a.txt", 60.0).output == "another\n"
    assert len(standin.builds) == 2


def test_the_official_image_is_taken_where_one_is_named(
    containers: OpenSandbox, standin: StandInEngine, shared_task: Task
) -> None:
    standin.images["org/image:1"] = shared_task.environment
    with closing(containers(replace(shared_task, docker_image="org/image:1"), DOCKER)) as sandbox:
        assert sandbox.exec("cat a.txt", 60.0).output == "a\n"
    assert not standin.builds
    with pytest.raises(SandboxError, match="org/none"):
        containers(replace(shared_task, docker_image="org/none:1"), DOCKER)


def test_a_container_has_the_limits_of_task_and_config(
    containers: OpenSandbox, standin: StandInEngine, shared_task: Task
) -> None:
    standin.images["org/image:1"] = shared_task.environment
    task = replace(shared_task, docker_image="org/image:1", cpus=10_000, memory_mb=3000)
    for config, memory in ((DOCKER, "3000m"), (replace(DOCKER, memory_mb=700), "700m")):
        config = replace(config, max_processes=77)
        containers(task, config).close()
        wanted = list(standin.wanted.values())[-1]
        assert (wanted.memory, wanted.pids_limit) == (memory, "77")
        assert float(wanted.cpus) == os.cpu_count()  # more would be refused
        assert wanted.entrypoint == "sleep" and int(wanted.argument) == 24 * 3600


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a script in the place of docker's client."""

    def put(script: str) -> None:
        path = tmp_path / "docker"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return put


def test_an_answer_without_end_fills_no_memory(client: Callable[[str], None]) -> None:
    client("head -c 30000000 /dev/zero; head -c 30000000 /dev/zero >&2; cat | wc -c")
    done = docker._asked(["exec"], bytes(3_000_000), 60.0, most=1000)
    assert (done.returncode, len(done.stdout), len(done.stderr)) == (0, 1000, 1000)
    client("wc -c")
    assert docker._asked(["exec"], bytes(3_000_000), 60.0).stdout.strip() == b"3000000"


def test_a_client_that_says_nothing_is_ended(client: Callable[[str], None]) -> None:
    client("exec sleep 1000")
    with pytest.raises(SandboxError, match=r"docker exec: no answer in 0\.2 s"):
        docker._asked(["exec"], b"", 0.2)


def test_a_container_that_is_lost_fails_and_can_be_closed(
    containers: OpenSandbox, standin: StandInEngine, shared_task: Task
) -> None:
    sandbox = containers(shared_task, DOCKER)
    threading.Timer(0.5, lambda: standin._remove(list(standin.containers))).start()
    with pytest.raises(SandboxError, match="No such container"):
        sandbox.exec("sleep 300", 300.0)
    sandbox.close()


def test_what_an_earlier_process_of_the_run_left_is_removed_and_nothing_else(
    standin: StandInEngine, shared_task: Task
) -> None:
    for label in ("this-run", "other-run"):
        docker._Engine(DOCKER, label).open(shared_task, DOCKER)  # and killed
    with providers.opened(DOCKER, "this-run"):
        assert list(standin.labels.values()) == ["glm52-tbench2.run=other-run"]
    docker.sweep("other-run")
    assert not standin.containers


def test_a_server_that_is_stopped_leaves_no_container(
    standin: StandInEngine, tmp_path: Path, suite: Path
) -> None:
    server = Server(tmp_path, suite, provider=SandboxProvider.docker)

    async def episode() -> None:
        session = await EnvSession.open(server.url)
        assert await session.reset("plain") == "Do plain."
        assert (await session.exec("touch done; pwd", 60.0)).output == "/app\n"
        assert (await session.evaluate()).reward == 1.0
        assert standin.containers
        assert server.stop() == -signal.SIGTERM

    asyncio.run(episode())
    assert not standin.containers


def test_a_run_that_ends_while_containers_start_leaves_none(
    standin: StandInEngine, shared_task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, started = standin._run, threading.Event()

    def slow(arguments: list[str], data: bytes) -> tuple[int, bytes, bytes]:
        started.set()
        time.sleep(0.3)
        return run(arguments, data)

    monkeypatch.setattr(standin, "_run", slow)
    config = replace(DOCKER, max_starting=2)
    with ThreadPoolExecutor(6) as pool:
        with providers.opened(config, "this-run") as open_sandbox:
            opening = [pool.submit(open_sandbox, shared_task, config) for _ in range(6)]
            assert started.wait(60.0)
        assert not standin.containers
    assert not standin.containers
    told = [str(one.exception()) for one in opening if one.exception()]
    assert len(told) >= 4
    assert all(one.endswith("the run is over") for one in told)


def test_waiting_for_a_turn_counts_as_starting(standin: StandInEngine, shared_task: Task) -> None:
    config = replace(DOCKER, max_starting=1, start_timeout_s=0.3)
    with providers.opened(config, "this-run") as open_sandbox:
        starting = open_sandbox.__self__._starting  # type: ignore[attr-defined]
        starting.acquire()  # by another
        threading.Timer(1.5, starting.release).start()
        with pytest.raises(SandboxError, match="max_starting"):
            open_sandbox(shared_task, config)
        time.sleep(1.5)


def test_an_engine_that_fails_for_a_moment_ends_no_run(
    standin: StandInEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker, "_SWEEP_PAUSE_S", 0.01)
    answers = [(1, b"", b"context deadline exceeded"), (0, b"", b"")]
    monkeypatch.setattr(standin, "_ps", lambda arguments, data: answers.pop(0))
    with providers.opened(DOCKER, "this-run"):
        assert not answers
        answers.append((0, b"", b""))


def test_what_cannot_be_removed_is_told_before_anything_starts(
    standin: StandInEngine, shared_task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker._Engine(DOCKER, "this-run").open(shared_task, DOCKER)  # and killed
    with monkeypatch.context() as patch:
        patch.setattr(docker, "_SWEEP_PAUSE_S", 0.01)
        patch.setattr(standin, "_rm", lambda arguments, data: (1, b"", b"driver failed\nto remove"))
        with pytest.raises(UserError) as error, providers.opened(DOCKER, "this-run"):
            pass
    assert "(driver failed to remove); look at: docker ps --all --filter" in str(error.value)
    docker.sweep("this-run")


def refused() -> str:
    with pytest.raises(UserError) as error:
        providers.check(DOCKER, "plain")
    assert "\n" not in str(error.value)
    return str(error.value)


def test_without_an_engine_one_sentence_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "install Docker Engine, or write sandbox=local" in refused()
    client = tmp_path / "docker"
    client.write_text("#!/bin/sh\necho Cannot connect to the Docker daemon. >&2\nexit 1\n")
    client.chmod(0o755)
    assert "Cannot connect to the Docker daemon" in refused()
