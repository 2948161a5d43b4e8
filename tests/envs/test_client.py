"""The client against servers that answer as OpenEnv's tbench2 environment has, over time."""

import asyncio
import json
import time
from collections.abc import Iterator

import pytest
from websockets.asyncio.server import ServerConnection, serve

from glm52_tbench2.envs.client import EnvSession, SandboxError
from glm52_tbench2.envs.core import Environment
from glm52_tbench2.envs.models import Tbench2Action, Tbench2Observation, Tbench2State

from .conftest import serving

MARK = {"harness": "tests/test.sh"}
VERDICTS = {
    "passed": ({"reward": 1.0, "done": True, "info": MARK}, 1.0),
    "failed": ({"reward": 0.0, "done": True, "info": MARK}, 0.0),
    "error": ({"error": "no verdict", "success": False}, None),
    "fake zero": ({"reward": 0.0, "done": True, "error": "no reward.txt", "info": MARK}, None),
    "no mark": ({"reward": 1.0, "done": True, "info": {"tests_passed": True}}, None),
    "other mark": ({"reward": 1.0, "done": True, "info": {"harness": "pytest"}}, None),
    "no reward": ({"done": True, "info": MARK}, None),
}


class Upstream(Environment[Tbench2Action, Tbench2Observation, Tbench2State]):
    """Answers with what the contract holds and no more; `evaluate` by the task's name."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    task = ""

    def reset(self, seed=None, episode_id=None, **kwargs) -> Tbench2Observation:
        self.task = kwargs["task_id"]
        return Tbench2Observation(instruction=f"Do {self.task}.", reward=0.0)

    def step(self, action, timeout_s=None, **kwargs) -> Tbench2Observation:
        if action.action_type == "evaluate":
            return Tbench2Observation(**VERDICTS[self.task][0])
        if action.command == "hang":
            time.sleep(1.0)
        if action.command == "fail":
            return Tbench2Observation(success=False, error="the toolkit failed")
        return Tbench2Observation(output=f"ran {action.command}")

    @property
    def state(self) -> Tbench2State:
        return Tbench2State(task_id=self.task)


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    """URL of a server of :class:`Upstream`."""
    with serving(Upstream) as url:
        yield url


@pytest.mark.parametrize("name", VERDICTS)
def test_a_verdict_counts_only_without_error_and_with_the_mark(upstream: str, name: str) -> None:
    async def episode() -> None:
        session = await EnvSession.open(upstream)
        assert await session.reset(name) == f"Do {name}."
        verdict = await session.evaluate()
        assert verdict.reward == VERDICTS[name][1]
        assert (verdict.error is None) == (verdict.reward is not None)
        await session.close()

    asyncio.run(episode())


def test_a_server_that_tells_no_exit_code_is_understood(upstream: str) -> None:
    async def episode() -> None:
        session = await EnvSession.open(upstream)
        await session.reset("passed")
        result = await session.exec("ls", 60.0)
        assert (result.output, result.exit_code, result.timed_out) == ("ran ls", None, False)
        await session.close()

    asyncio.run(episode())


def test_an_error_in_an_observation_spends_the_session(upstream: str) -> None:
    async def episode() -> None:
        session = await EnvSession.open(upstream)
        await session.reset("passed")
        with pytest.raises(SandboxError, match="the toolkit failed"):
            await session.exec("fail", 60.0)
        with pytest.raises(SandboxError, match="given up"):
            await session.evaluate()
        await session.close()

    asyncio.run(episode())


def test_a_late_answer_never_reaches_the_next_question(upstream: str) -> None:
    async def episode() -> None:
        session = await EnvSession.open(upstream)
        await session.reset("passed")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await session.exec("hang", 60.0)
        with pytest.raises(SandboxError):
            await session.exec("ls", 60.0)
        await session.close()

    asyncio.run(episode())


GARBAGE = [
    "no JSON",
    '{"type": "observation", "data": {"obser',
    "{}",
    "[]",
    "7",
    '{"type": "observation"}',
    '{"type": "observation", "data": {}}',
    '{"type": "observation", "data": []}',
    '{"type": "observation", "data": {"observation": null}}',
    '{"type": "observation", "data": {"observation": {}}}',
    '{"type": "observation", "data": {"observation": {"output": [1]}}}',
]
GOOD = {
    "state": {"type": "state", "data": Tbench2State().model_dump()},
    "reset": {"type": "observation", "data": {"observation": {"output": "", "instruction": "Do."}}},
    "step": {"type": "observation", "data": {"observation": {"output": "done"}}},
}


@pytest.mark.parametrize("spoiled", GOOD)
@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_is_a_failure_of_the_sandbox_never_an_empty_answer(
    spoiled: str, garbage: str
) -> None:
    async def answer(connection: ServerConnection) -> None:
        async for question in connection:
            kind = json.loads(question)["type"]
            if kind != "close":
                await connection.send(garbage if kind == spoiled else json.dumps(GOOD[kind]))

    async def episode() -> None:
        async with serve(answer, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            with pytest.raises(SandboxError):
                session = await EnvSession.open(url)
                assert await session.reset("any") == "Do."
                assert (await session.exec("ls", 5.0)).output == "done"

    asyncio.run(episode())
