"""Actions whose client goes away, without a network."""

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest

from glm52_tbench2.envs.attended import Attended, ClientGone
from glm52_tbench2.envs.environment import TerminalEnvironment
from glm52_tbench2.tasks.suite import Task

from .conftest import CONFIG


class Held:
    """A sandbox, and what makes it: both wait to be let go."""

    def __init__(self) -> None:
        self.go, self.closed = threading.Event(), threading.Event()

    def open(self, task: Task, config: Any) -> "Held":
        assert self.go.wait(30)
        return self

    def close(self) -> None:
        self.closed.set()


def left(environment: TerminalEnvironment, **action: Any) -> None:
    """Resets it, over a connection that ends meanwhile."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "websocket.receive"
        try:
            with pytest.raises(ClientGone):
                await environment.reset_async(**action)
            assert (await receive())["type"] == "websocket.disconnect"
        finally:
            environment.close()  # as OpenEnv does

    async def receive() -> dict[str, str]:
        await asyncio.sleep(0.05)
        return {"type": messages.pop(0)}

    messages = ["websocket.receive", "websocket.disconnect"]
    asyncio.run(asyncio.wait_for(Attended(app)({"type": "websocket"}, receive, None), 10))


def test_a_sandbox_that_starts_for_nobody_is_closed(shared_task: Task) -> None:
    held = Held()
    environment = TerminalEnvironment({"plain": shared_task}, replace(CONFIG), held.open)
    left(environment, task_id="plain")
    assert not held.closed.is_set()
    held.go.set()
    assert held.closed.wait(30)
