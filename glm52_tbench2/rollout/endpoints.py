"""The environment and the engines of a job, found by their signals at each use."""

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import TypeVar

from ..config.schema import RunConfig
from ..config.signals import Signals
from ..engines.client import EngineClient, EngineError
from ..envs.client import EnvSession
from .episode import Engine
from .player import RolloutError

POLL_S = 0.05
T = TypeVar("T")


async def there(
    ask: Callable[[], Awaitable[T | None]],
    deadline_s: float,
    otherwise: str,
    poll_s: float = POLL_S,
) -> T:
    """What `ask` gives, once it gives something. Raises RolloutError, which says `otherwise`."""
    began = perf_counter()
    while (found := await ask()) is None:
        if perf_counter() - began > deadline_s:
            raise RolloutError(f"{otherwise} within {deadline_s:g} s")
        await asyncio.sleep(poll_s)
    return found


class Endpoints:
    """Where a run's episodes are played, and which weights its engines serve."""

    def __init__(self, config: RunConfig, signals: Signals) -> None:
        self._config, self._signals = config, signals
        self._engines: dict[int, EngineClient] = {}

    async def engine(self, number: int) -> Engine:
        """The client of engine `number` modulo their count, or of the next one that is ready.

        Ready are those that answer and serve no older weights than the others: one that was
        restarted may have to wait for them. Raises RolloutError when none is within its deadline.
        """
        count = self._config.engine.num_engines

        async def ready() -> EngineClient | None:
            for turn in range(count):
                if client := await self._connected((number + turn) % count):
                    return client
            return None

        deadline_s = self._config.cluster.deadlines.engine
        return await there(ready, deadline_s, f"engine/{number % count} was not ready")

    async def open_sandbox(self) -> EnvSession:
        """A new session with the environment, once it is ready."""
        sandbox = self._config.sandbox
        url = sandbox.url  # only an external server has one that is known beforehand
        if url is None:
            deadline_s = self._config.cluster.deadlines.env
            url = await there(lambda: self._get("env/0"), deadline_s, "env/0 was not ready")
        # A place is part of what a sandbox's start may wait for: others may hold it for long.
        limit_s = sandbox.start_timeout_s
        return await EnvSession.open(url, limit_s, reset_timeout_s=limit_s)

    async def weights(self) -> int | None:
        """The newest version every engine serves; None before the trainer's first push.

        Without a trainer the starting weights, version 0, are all there is.
        """
        if not self._config.trains:
            return 0
        version = await self._get("weights/version")
        return None if version is None else int(version)

    async def weights_at(self, version: int) -> None:
        """Returns once every engine serves exactly `version`."""
        while await self.weights() != version:
            await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        """Closes the connections to the engines."""
        for client in self._engines.values():
            await client.close()

    async def _connected(self, index: int) -> EngineClient | None:
        url = await self._get(f"engine/{index}")
        client = self._engines.get(index)
        if client is not None and url is not None and client.url != url:
            await self._engines.pop(index).close()
            client = None
        if url is None:
            return None
        if client is None:
            client = self._engines[index] = EngineClient(url, self._config.engine.request_timeout_s)
            client.failed = True  # until it has said what it serves
        # Requests of others may still run on one that failed once: it is asked, not closed.
        if client.failed and await self._serves_the_newest(client):
            client.failed = False
        return None if client.failed else client

    async def _serves_the_newest(self, client: EngineClient) -> bool:
        newest = await self.weights()
        try:
            served = await client.weight_version()
        except EngineError:
            return False
        return served is not None and served >= (newest or 0)

    async def _get(self, key: str) -> str | None:
        return await asyncio.to_thread(self._signals.get, key)
