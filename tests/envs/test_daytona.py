"""What Daytona may do wrong, and that nothing is ever left behind there."""

import asyncio
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.schema import SandboxProvider
from glm52_tbench2.envs import daytona, providers, remote
from glm52_tbench2.envs.client import EnvSession
from glm52_tbench2.envs.dockerfile import inlined
from glm52_tbench2.envs.sandbox import OpenSandbox, SandboxError
from glm52_tbench2.tasks.suite import Task

from .conftest import CONFIG, Server, wait_until, write_task
from .standin_container import Container
from .standin_daytona import KEY, StandInDaytona

CLOUD = replace(CONFIG, provider=SandboxProvider.daytona, start_timeout_s=20.0)


@pytest.fixture
def service(
    daytona_service: StandInDaytona, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StandInDaytona]:
    """The stand-in, empty, where everything works until a test says otherwise."""
    monkeypatch.setenv("DAYTONA_API_URL", daytona_service.url)
    monkeypatch.setenv("DAYTONA_API_KEY", KEY)
    monkeypatch.setattr(daytona, "_PAUSE_S", (0.02, 0.1))
    daytona_service.reset()
    daytona_service.lose()
    daytona_service.asked.clear()
    daytona_service.created.clear()
    yield daytona_service
    daytona_service.reset()


@pytest.fixture
def cloud(service: StandInDaytona) -> Iterator[OpenSandbox]:
    """Opens sandboxes of a run."""
    with providers.opened(CLOUD, "this-run") as open_sandbox:
        yield open_sandbox
    assert not service.machines


def works(open_sandbox: OpenSandbox, task: Task, **config) -> None:
    with closing(open_sandbox(task, replace(CLOUD, **config))) as sandbox:
        assert sandbox.exec("cat a.txt", 60.0).output == "a\n"


def refused(open_sandbox: OpenSandbox, task: Task, **config) -> str:
    with pytest.raises(SandboxError) as error:
        open_sandbox(task, replace(CLOUD, **config))
    assert KEY not in str(error.value)
    return str(error.value)


# Making


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_creation_that_is_not_let_in_is_tried_again(
    service: StandInDaytona, cloud: OpenSandbox, shared_task: Task, status: int
) -> None:
    service.fault("POST /api/sandbox$", status, times=3)
    works(cloud, shared_task)
    assert len(service.created) == 1
    assert not service.machines


def test_a_creation_whose_answer_is_lost_makes_one_sandbox(
    service: StandInDaytona, cloud: OpenSandbox, shared_task: Task
) -> None:
    service.fault("POST /api/sandbox$", 502, after=True)
    works(cloud, shared_task)
    assert len(service.created) == 1


def test_a_look_that_fails_while_it_is_built_does_not_build_it_anew(
    service: StandInDaytona, cloud: OpenSandbox, shared_task: Task
) -> None:
    service.build_s = 0.5
    service.fault("GET /api/sandbox/.", 500, times=2)
    works(cloud, shared_task)
    assert len(service.created) == 1


def test_a_full_quota_is_waited_for(
    service: StandInDaytona, cloud: OpenSandbox, shared_task: Task
) -> None:
    service.max_sandboxes = 0
    threading.Timer(0.5, lambda: setattr(service, "max_sandboxes", 1)).start()
    works(cloud, shared_task)


def test_a_quota_that_stays_full_is_told(
    service: StandInDaytona, cloud: OpenSandbox, shared_task: Task
) -> None:
    service.max_sandboxes = 0
    assert "limit exceeded" in refused(cloud, shared_task, start_timeout_s=0.5)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (403, "CPU request 8 exceeds maximum allowed per sandbox (4)"),
        (403, "Forbidden resource"),
        (400, "Invalid Dockerfile"),
    ],
)
def test_what_will_never_be_let_in_is_tried_once(
    service: StandInDaytona, cloud: OpenSandbox, shared_task: Task, status: int, said: str
) -> None:
    service.fault("POST /api/sandbox$", status, said, times=100)
    assert said in refused(cloud, shared_task)
    assert service.asked.count("POST /api/sandbox") == 1


def test_a_build_that_fails_leaves_nothing(
    service: StandInDaytona, cloud: OpenSandbox, make_task: Callable[..., Task]
) -> None:
    task = make_task(dockerfile="FROM debian\nRUN echo why; false\n")
    assert "why" in refused(cloud, task)
    assert len(service.created) == 1
    assert not service.machines


def test_a_build_past_its_time_leaves_nothing(
    service: StandInDaytona, cloud: OpenSandbox, shared_task: Task
) -> None:
    service.build_s = 3.0
    refused(cloud, shared_task, start_timeout_s=1.0)
    assert not service.machines


def test_an_interrupted_creation_leaves_nothing(
    service: StandInDaytona,
    cloud: OpenSandbox,
    shared_task: Task,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(sandbox: object, timeout: float) -> None:
        assert service.machines
        raise KeyboardInterrupt

    monkeypatch.setattr("daytona.Sandbox.wait_for_sandbox_start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cloud(shared_task, CLOUD)
    assert not service.machines


def test_only_so_many_are_made_at_one_time(service: StandInDaytona, shared_task: Task) -> None:
    service.build_s, service.most_building = 0.3, 0
    with (
        providers.opened(replace(CLOUD, max_starting=2), "this-run") as open_sandbox,
        ThreadPoolExecutor(6) as pool,
    ):
        list(pool.map(lambda _: works(open_sandbox, shared_task), range(6)))
    assert service.most_building == 2


def test_waiting_for_a_turn_counts_as_starting(service: StandInDaytona, shared_task: Task) -> None:
    config = replace(CLOUD, max_starting=1)
    with providers.opened(config, "this-run") as open_sandbox:
        starting = open_sandbox.__self__._starting  # type: ignore[attr-defined]
        starting.acquire()  # by another
        threading.Timer(1.5, starting.release).start()
        assert "max_starting" in refused(open_sandbox, shared_task, start_timeout_s=0.3)
    assert not service.created


def test_a_sandbox_is_what_its_task_and_run_say(
    service: StandInDaytona, cloud: OpenSandbox, shared_task: Task
) -> None:
    task = replace(shared_task, docker_image="org/image:1", cpus=2, memory_mb=2048, storage_mb=9000)
    cloud(shared_task, CLOUD)
    cloud(shared_task, CLOUD)
    with suppress(SandboxError):  # which starts from nothing here, so there is no /app in it
        cloud(task, CLOUD)
    first, second, official = service.created
    assert first["labels"].items() >= {"glm52-tbench2.run": "this-run", "task": "plain"}.items()
    assert first["buildInfo"] == second["buildInfo"]  # by which Daytona finds it built
    assert first["buildInfo"]["dockerfileContent"] == inlined(shared_task.environment)
    assert official["buildInfo"]["dockerfileContent"] == "FROM org/image:1\n"
    assert (official["cpu"], official["memory"], official["disk"]) == (2, 2, 9)
    assert (first["autoStopInterval"], first["autoDeleteInterval"]) == (CLOUD.auto_stop_min, 0)


# Living


def test_a_sandbox_that_is_lost_fails_and_can_be_closed(
    service: StandInDaytona, cloud: OpenSandbox, shared_task: Task
) -> None:
    sandbox = cloud(shared_task, CLOUD)
    threading.Timer(0.5, service.lose).start()
    with pytest.raises(SandboxError):
        sandbox.exec("sleep 300", 300.0)
    with pytest.raises(SandboxError):
        sandbox.verify()
    sandbox.close()


def test_a_call_that_is_not_let_in_is_repeated_and_no_other_is(
    service: StandInDaytona, cloud: OpenSandbox, shared_task: Task
) -> None:
    with closing(cloud(shared_task, CLOUD)) as sandbox:
        service.fault("POST /toolbox/.*/execute", 429, times=2)
        assert sandbox.exec("echo x >> /tmp/x; cat /tmp/x", 60.0).output == "x\n"
        service.fault("POST /toolbox/.*/execute", 502, after=True)
        with pytest.raises(SandboxError):
            sandbox.exec("echo x >> /tmp/x", 60.0)
        assert sandbox.exec("cat /tmp/x", 60.0).output == "x\nx\n"


def test_a_service_that_hangs_fails_the_call(
    service: StandInDaytona,
    cloud: OpenSandbox,
    shared_task: Task,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sandbox = cloud(shared_task, CLOUD)
    monkeypatch.setattr(remote, "_MARGIN_S", -6.5)  # the client adds 5 s to half a second
    service.fault("POST /toolbox/.*/execute", 500, hang_s=8.0)
    with pytest.raises(SandboxError):
        sandbox.exec("true", 7.0)


def test_a_command_longer_than_a_call_goes_on_over_several(
    service: StandInDaytona,
    cloud: OpenSandbox,
    shared_task: Task,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote, "_SLICE_S", 0.3)
    with closing(cloud(shared_task, CLOUD)) as sandbox:
        service.asked.clear()
        result = sandbox.exec("for i in 1 2 3 4; do echo $i; sleep 0.4; done; exit 3", 60.0)
        assert (result.output, result.exit_code) == ("1\n2\n3\n4\n", 3)
        assert len(service.asked) > 3
        assert result.seconds > 1.5
        assert sandbox.exec("echo begun; sleep 300", 1.0).timed_out


def test_an_idle_sandbox_is_kept_alive_until_it_is_closed(
    service: StandInDaytona, shared_task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daytona, "_MINUTE_S", 0.02)
    with providers.opened(CLOUD, "this-run") as open_sandbox:
        sandbox = open_sandbox(shared_task, CLOUD)
        service.asked.clear()
        wait_until(lambda: sum(asked.endswith("last-activity") for asked in service.asked) > 2)
        sandbox.close()
        time.sleep(0.3)
        service.asked.clear()
        time.sleep(0.5)
        assert not service.asked


def test_the_key_is_not_inside(cloud: OpenSandbox, shared_task: Task) -> None:
    with closing(cloud(shared_task, CLOUD)) as sandbox:
        assert (
            KEY not in sandbox.exec("env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline", 60).output
        )


# Ending


@pytest.mark.parametrize("status", [404, 409, 429, 500])
def test_closing_survives_what_a_deletion_answers(
    service: StandInDaytona, cloud: OpenSandbox, shared_task: Task, status: int
) -> None:
    sandbox = cloud(shared_task, CLOUD)
    service.fault("DELETE /api/sandbox/", status, after=status == 404)
    sandbox.close()
    sandbox.close()
    assert not service.machines


def test_what_an_earlier_process_of_the_run_left_is_removed_and_nothing_else(
    service: StandInDaytona, shared_task: Task
) -> None:
    for label in ("this-run", "other-run"):
        daytona._Cloud(CLOUD, label).open(shared_task, CLOUD)  # and killed
    with providers.opened(CLOUD, "this-run") as open_sandbox:
        left = [machine.labels["glm52-tbench2.run"] for machine in service.machines.values()]
        assert left == ["other-run"]
        open_sandbox(shared_task, CLOUD)  # and not closed
    left = [machine.labels["glm52-tbench2.run"] for machine in service.machines.values()]
    assert left == ["other-run"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_is_ended_leaves_nothing_for_longer_than_to_its_next_start(
    service: StandInDaytona, tmp_path: Path, suite: Path, number: int
) -> None:
    server = Server(tmp_path, suite, provider=SandboxProvider.daytona)

    async def episode() -> None:
        session = await EnvSession.open(server.url)
        assert await session.reset("plain") == "Do plain."
        assert (await session.exec("touch done; pwd", 60.0)).output == "/app\n"
        assert (await session.evaluate()).reward == 1.0
        service.build_s = 2.0
        building = asyncio.create_task((await EnvSession.open(server.url)).reset("plain"))
        while len(service.machines) < 2:
            await asyncio.sleep(0.05)
        assert server.stop(number) == -number
        with pytest.raises(SandboxError):
            await building

    asyncio.run(episode())
    assert bool(service.machines) == (number == signal.SIGKILL)
    server.start()
    assert not service.machines
    server.stop()


# Before a run


def sentence(**config) -> str:
    with pytest.raises(UserError) as error:
        providers.check(replace(CLOUD, **config), "plain")
    assert "\n" not in str(error.value)
    assert KEY not in str(error.value)
    return str(error.value)


def test_a_service_that_works_passes_the_check(service: StandInDaytona, tmp_path: Path) -> None:
    providers.check(CLOUD, "plain")
    assert not any("POST" in asked for asked in service.asked)
    key = tmp_path / "key"
    key.write_text(f"{KEY}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DAYTONA_API_KEY")
        providers.check(replace(CLOUD, api_key_file=str(key)), "plain")


def test_a_missing_key_is_asked_for(service: StandInDaytona, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DAYTONA_API_KEY")
        assert "set DAYTONA_API_KEY" in sentence()
    assert "No such file" in sentence(api_key_file=str(tmp_path / "none"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)  # a role runs elsewhere than the command that started it
        (tmp_path / "daytona.key").write_text(KEY)
        assert "No such file" in sentence(api_key_file="daytona.key")


@pytest.mark.parametrize("key", ["dtn_SECRET1\nSECRET2", "dtn_SECRET SECRET", "dtn_SECRET\u2026"])
def test_what_is_no_key_is_told_and_not_quoted(
    service: StandInDaytona, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: str
) -> None:
    monkeypatch.setenv("DAYTONA_API_KEY", key)
    file = tmp_path / "key"
    file.write_text(key)
    for told in (sentence(), sentence(api_key_file=str(file))):
        assert "write Daytona's API key alone there" in told
        assert "SECRET" not in told
    assert not service.asked


def test_a_key_file_of_nobody_is_told(service: StandInDaytona) -> None:
    assert "there is no such user" in sentence(api_key_file="~nosuchuser/key")


def test_a_key_that_the_service_echoes_is_not_told(
    service: StandInDaytona, cloud: OpenSandbox, shared_task: Task
) -> None:
    service.fault("GET /api/sandbox", 403, f"Forbidden: Bearer {KEY}")
    assert "Bearer (key)" in sentence()
    service.fault("POST /api/sandbox$", 400, f"Bad: Bearer {KEY}")
    assert "Bearer (key)" in refused(cloud, shared_task)


def test_an_address_that_is_none_is_told(
    service: StandInDaytona, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAYTONA_API_URL", "foo")
    assert "DAYTONA_API_URL does not start with http:// or https://" in sentence()


def test_an_expired_key_is_told(service: StandInDaytona, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAYTONA_API_KEY", "expired")
    assert "refuses the API key" in sentence()
    monkeypatch.setenv("DAYTONA_API_KEY", KEY)
    service.fault("GET /api/sandbox", 403, "API key expired")
    assert "API key expired" in sentence()


def test_a_service_that_fails_for_a_moment_ends_no_run(service: StandInDaytona) -> None:
    """An environment server that is started again asks just when the service may be unwell."""
    service.fault("GET /api/sandbox$", 502, times=3)
    providers.check(CLOUD, "plain")
    service.fault("GET /api/sandbox$", 429, times=3)
    daytona._Cloud(CLOUD, "this-run").sweep()
    assert service.asked.count("GET /api/sandbox") == 8


def test_an_unreachable_service_is_told(
    service: StandInDaytona, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daytona, "_FIND_S", 0.3)
    service.fault("GET /api/sandbox", 500, times=100)
    assert "does not answer" in sentence()
    monkeypatch.setenv("DAYTONA_API_URL", "http://127.0.0.1:9/api")
    assert "http://127.0.0.1:9/api" in sentence()


def test_a_quota_of_zero_is_told(service: StandInDaytona) -> None:
    service.quota = 0
    assert "quota of zero" in sentence()
    service.fault("GET /api/organizations", 403)  # not every key may ask
    providers.check(CLOUD, "plain")


def test_a_large_file_is_carried_in_lines_that_builders_take(tmp_path: Path) -> None:
    noise = "".join(random.Random(1).choices("abcdefghijklmnop", k=300_000))
    task = write_task(tmp_path / "large", files={"files/a.txt": noise, "files/b.sh": "exit\n"})
    text = inlined(task.environment)
    assert max(map(len, text.splitlines())) < 65_535
    (tmp_path / "Dockerfile").write_text(text)
    with closing(Container(tmp_path)) as container:
        code, out, _ = container.run(["sh", "-c", "cat /app/a.txt; ls -a /app / | grep -c b"], b"")
        assert (code, out.decode()[:300_000]) == (0, noise)
        assert container.run(["ls", "/.carried"], b"")[0] != 0
