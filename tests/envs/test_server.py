"""The server as its own process, driven by the client over real connections."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from glm52_tbench2.envs import client as client_module
from glm52_tbench2.envs.client import EnvSession, NoCapacity, SandboxError
from glm52_tbench2.envs.models import HARNESS, Tbench2Action
from glm52_tbench2.envs.wire import Tbench2Client

from .conftest import Server, descendants, none_of, wait_until


async def opened(server: Server, task: str = "plain") -> EnvSession:
    session = await EnvSession.open(server.url)
    await session.reset(task)
    return session


def test_an_episode_from_reset_to_close(server: Server) -> None:
    async def episode() -> None:
        session = await EnvSession.open(server.url)
        assert await session.reset("plain") == "Do plain."
        result = await session.exec("cat a.txt; echo oops >&2; exit 3", 60.0)
        assert (result.output, result.exit_code, result.timed_out) == ("a\noops\n", 3, False)
        assert 0 < result.seconds < 20
        assert (await session.exec("touch done; pwd", 60.0)).output == "/app\n"
        verdict = await session.evaluate()
        assert (verdict.reward, verdict.error) == (1.0, None)
        with pytest.raises(SandboxError, match="the episode is over"):
            await session.exec("true", 60.0)
        await session.close()
        await session.close()
        with pytest.raises(SandboxError):
            await session.reset("plain")

    asyncio.run(episode())


def test_a_commands_time_limit_travels_with_it(server: Server) -> None:
    async def episode() -> None:
        session = await opened(server)
        result = await session.exec("cd /tmp; sleep 300", 0.3)
        assert (result.timed_out, result.exit_code) == (True, None)
        assert (await session.exec("pwd", 60.0)).output == "/tmp\n"
        await session.close()

    asyncio.run(episode())


@pytest.mark.parametrize(
    ("task", "told"),
    [("plane", "no task plane"), ("broken", "nonsense"), ("", "no task")],
)
def test_an_episode_that_cannot_start_says_why(server: Server, task: str, told: str) -> None:
    async def episode() -> None:
        session = await EnvSession.open(server.url)
        with pytest.raises(SandboxError, match=told):
            await session.reset(task)
        with pytest.raises(SandboxError, match="given up"):
            await session.exec("true", 60.0)
        await session.close()

    asyncio.run(episode())


def test_no_verdict_is_told_as_such(server: Server) -> None:
    async def episode() -> None:
        session = await opened(server, "silent")
        verdict = await session.evaluate()
        assert verdict.reward is None
        assert "reward.txt" in (verdict.error or "")
        await session.close()

    asyncio.run(episode())


def test_text_of_any_kind_crosses(server: Server) -> None:
    async def episode() -> None:
        session = await opened(server)
        assert (
            await session.exec("printf 'é\U0001f98a\\n' | od -c | head -1", 60.0)
        ).exit_code == 0
        assert (await session.exec("echo 'é\U0001f98a\ud800\x00'", 60.0)).output == "é\U0001f98a?\n"
        assert len((await session.exec("head -c 9M /dev/urandom", 60.0)).output) <= 10_000
        assert (await session.exec("echo fine", 60.0)).output == "fine\n"
        with pytest.raises(SandboxError, match="bytes"):
            await session.exec("x" * 5_000_000, 60.0)
        await session.close()

    asyncio.run(episode())


def test_sixteen_sessions_at_once_are_sixteen_machines(server: Server) -> None:
    async def episode(number: int) -> tuple[str, float | None]:
        session = await opened(server)
        for _ in range(5):
            await session.exec(f"echo {number} >> /tmp/mine; sleep 0.01", 60.0)
        if number % 2:
            await session.exec("touch done", 60.0)
        said = (await session.exec("sort -u /tmp/mine; wc -l < /tmp/mine", 60.0)).output
        reward = (await session.evaluate()).reward
        await session.close()
        return said, reward

    async def all_of_them() -> list[tuple[str, float | None]]:
        return await asyncio.gather(*map(episode, range(16)))

    assert asyncio.run(all_of_them()) == [(f"{n}\n5\n", float(n % 2)) for n in range(16)]


def test_calls_of_one_session_run_in_turn_and_keep_their_answers(server: Server) -> None:
    async def episode() -> None:
        session = await opened(server)
        results = await asyncio.gather(
            *(session.exec(f"sleep 0.0{9 - n}; echo {n}", 60.0) for n in range(8))
        )
        assert [result.output for result in results] == [f"{n}\n" for n in range(8)]
        await session.close()

    asyncio.run(episode())


def test_a_full_server_says_so_and_takes_the_next_when_there_is_room(server: Server) -> None:
    async def episode() -> None:
        sessions = await asyncio.gather(*(EnvSession.open(server.url) for _ in range(16)))
        with pytest.raises(NoCapacity):
            await EnvSession.open(server.url, timeout_s=0.3)
        waiting = asyncio.create_task(EnvSession.open(server.url, timeout_s=60.0))
        await asyncio.sleep(0.3)
        await sessions[0].close()
        late = await waiting
        assert await late.reset("plain") == "Do plain."
        await asyncio.gather(*(session.close() for session in [*sessions, late]))

    asyncio.run(episode())


def test_no_answer_in_time_spends_the_session(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # OpenEnv's client would reconnect to a new environment, where `cat` would find nothing.
    monkeypatch.setattr(client_module, "_MARGIN_S", -1.9)

    async def episode() -> None:
        session = await opened(server)
        with pytest.raises(SandboxError, match="no answer in"):
            await session.exec("sleep 1; echo late > /tmp/late", 2.0)
        with pytest.raises(SandboxError, match="given up"):
            await session.exec("cat /tmp/late", 60.0)
        await session.close()

    asyncio.run(episode())


def test_a_cancelled_call_spends_the_session_and_frees_its_place(server: Server) -> None:
    async def episode() -> None:
        sessions = await asyncio.gather(*(opened(server) for _ in range(4)))
        for session in sessions:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await session.exec("sleep 1", 60.0)
            with pytest.raises(SandboxError, match="given up"):
                await session.exec("true", 60.0)
        again = await asyncio.gather(*(EnvSession.open(server.url) for _ in range(16)))
        await asyncio.gather(*(session.close() for session in [*sessions, *again]))

    asyncio.run(episode())


def test_a_command_that_a_message_cannot_hold_is_not_sent(server: Server) -> None:
    """The server would end the session at such a message, as if the sandbox were lost."""

    async def episode() -> None:
        session = await opened(server)
        with pytest.raises(SandboxError, match="more than 4194304 bytes"):
            await session.exec("x" * 5_000_000, 60.0)
        await session.close()

    asyncio.run(episode())


def test_nothing_answers_where_there_is_no_server() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    with pytest.raises(SandboxError, match="connect"):
        asyncio.run(EnvSession.open(f"http://127.0.0.1:{port}", timeout_s=5.0))


# The contract, spoken by OpenEnv's client without ours around it


def test_every_action_of_the_contract(server: Server) -> None:
    async def episode() -> None:
        client = Tbench2Client(server.url)

        async def step(**action):
            return await client.step(Tbench2Action(**action))

        begun = await client.reset(task_id="plain", episode_id="mine")
        assert begun.observation.instruction == "Do plain."
        assert begun.observation.info == {"verifier_timeout_sec": 120.0, "command_timeout_s": 60.0}
        assert (begun.reward, begun.done) == (None, False)

        wrote = await step(action_type="write_file", file_path="deep/f", content="it's\n$x\\")
        assert wrote.observation.success
        read = await step(action_type="exec", command="cat deep/f")
        assert read.observation.output == "it's\n$x\\"
        failed = (await step(action_type="exec", command="exit 4")).observation
        assert (failed.success, failed.error, failed.info["exit_code"]) == (False, "", 4)

        loop = 'while read line; do echo "got $line"; done; echo over'
        started = await step(action_type="exec", command=loop, block=False, session_id="s/1")
        assert (started.observation.success, started.observation.session_id) == (True, "s/1")
        assert (await step(action_type="view", session_id="s/1")).observation.output == ""
        await step(action_type="write", session_id="s/1", command="one\ntwo\n")
        shown = ""
        while "two" not in shown:
            shown += (await step(action_type="view", session_id="s/1")).observation.output
        assert shown == "got one\ngot two\n"
        assert (await step(action_type="exec", command="cat a.txt")).observation.output == "a\n"
        assert (await step(action_type="kill", session_id="s/1")).observation.success
        ended = await step(action_type="wait", session_id="s/1", wait_seconds=10)
        assert ended.observation.output == ""
        assert not (await step(action_type="write", session_id="s/1")).observation.success

        quick = "sleep 0.2; echo result"
        await step(action_type="exec", command=quick, block=False, session_id="t")
        waited = await step(action_type="wait", session_id="t", wait_seconds=10)
        assert waited.observation.output == "result\n"

        for wrong in (
            {"action_type": "dance"},
            {"action_type": "view"},
            {"action_type": "exec", "block": False},
        ):
            seen = (await step(**wrong)).observation
            assert (seen.success, bool(seen.error)) == (False, True)
        assert not (await step(action_type="view", session_id="none")).observation.success

        state = await client.state()
        assert (state.episode_id, state.task_id, state.terminal_ready) == ("mine", "plain", True)
        assert state.last_action_type == "view"

        judged = await step(action_type="evaluate")
        assert (judged.reward, judged.done) == (0.0, True)
        assert judged.observation.info == {"tests_passed": False, "harness": HARNESS}
        assert (await client.reset(task_id="silent")).observation.task_id == "silent"
        unjudged = await step(action_type="evaluate")
        assert (unjudged.reward, unjudged.done) == (None, False)
        assert unjudged.observation.error
        assert (await step(action_type="close")).done
        with pytest.raises(RuntimeError, match="no episode"):
            await step(action_type="exec", command="true")
        await client.close()

    asyncio.run(episode())


def test_the_servers_own_secrets_do_not_reach_its_sandboxes(server: Server) -> None:
    assert b"secret-of-the-host" in Path(f"/proc/{server.process.pid}/environ").read_bytes()

    async def episode() -> str:
        session = await opened(server)
        look = "env; cat /proc/[0-9]*/environ; cat /proc/1/environ; echo looked"
        output = (await session.exec(look, 60.0)).output
        await session.close()
        return output

    output = asyncio.run(episode())
    assert "looked" in output
    assert "secret-of-the-host" not in output


# Its process


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory, suite: Path) -> Iterator[Server]:
    """A server that its tests end and start again, with two places."""
    server = Server(
        tmp_path_factory.mktemp("mortal"), suite, max_concurrent=2, command_timeout_s=300.0
    )
    yield server
    server.stop()


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 0), (signal.SIGKILL, -signal.SIGKILL)],
    ids=["SIGTERM", "SIGINT", "SIGKILL"],
)
def test_it_ends_promptly_with_every_sandbox_and_its_sessions_fail(
    mortal: Server, number: int, code: int
) -> None:
    async def episode() -> list[int]:
        session, idle = await opened(mortal), await opened(mortal)
        running = asyncio.create_task(session.exec("sleep 300 & sleep 300", 300.0))
        await asyncio.sleep(0.5)
        below = descendants(mortal.process.pid)
        assert len(below) >= 8
        began = time.monotonic()
        assert mortal.stop(number) == code
        assert time.monotonic() - began < 15
        with pytest.raises(SandboxError):
            await running
        mortal.start()
        # Connected anew it would be in an environment that no one has reset.
        with pytest.raises(SandboxError):
            await idle.exec("true", 60.0)
        fresh = await opened(mortal)
        assert (await fresh.exec("echo fine", 60.0)).output == "fine\n"
        await fresh.close()
        return below

    below = asyncio.run(episode())
    wait_until(lambda: none_of(below))


CLIENT = """
import asyncio, sys
from glm52_tbench2.envs.client import EnvSession

async def hold():
    for _ in range(2):
        session = await EnvSession.open(sys.argv[1])
        await session.reset("plain")
        if sys.argv[2] == "works":
            asyncio.create_task(session.exec("touch begun; sleep 300", 300.0))
    print("held", flush=True)
    await asyncio.sleep(300)

asyncio.run(hold())
"""


@pytest.mark.parametrize("busy", ["idles", "works"])
def test_a_client_that_dies_frees_its_places_and_its_sandboxes(mortal: Server, busy: str) -> None:
    """A driver that is started again finds them, however long the commands of the last one take."""
    holder = subprocess.Popen(
        [sys.executable, "-c", CLIENT, mortal.url, busy], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    if busy == "works":
        wait_until(lambda: sum(map(is_sleep, descendants(mortal.process.pid))) == 2)
    below = descendants(mortal.process.pid)
    assert not none_of(below)
    holder.kill()
    holder.wait()
    wait_until(lambda: none_of(below))

    async def episode() -> None:
        sessions = [await EnvSession.open(mortal.url, timeout_s=30.0) for _ in range(2)]
        for session in sessions:
            await session.close()

    asyncio.run(episode())


def is_sleep(pid: int) -> bool:
    """Whether a process is the one that the clients above wait for."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x00300\x00"
    except OSError:
        return False


def told(run: Path, port: int = 0, **env: str) -> tuple[int, str]:
    """Exit code and last words of a server that should not start."""
    argv = ["--run", str(run), "--host", "127.0.0.1", "--port", str(port)]
    ended = subprocess.run(
        [sys.executable, "-m", "glm52_tbench2.envs.server", *argv],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return ended.returncode, ended.stderr


def test_what_keeps_it_from_starting_is_one_sentence(server: Server, tmp_path: Path) -> None:
    code, words = told(server.run, PATH=str(tmp_path))
    assert (code, words.count("\n")) == (2, 1)
    assert "`apt-get install bubblewrap`" in words

    code, words = told(server.run, server.port)
    assert (code, words.count("\n")) == (2, 1)
    assert f"127.0.0.1:{server.port}" in words

    code, words = told(tmp_path)
    assert (code, words.count("\n")) == (2, 1)
    assert str(tmp_path) in words
