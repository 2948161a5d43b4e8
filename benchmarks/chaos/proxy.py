"""Stands between the driver and the environment server, and spoils some of the answers."""

import asyncio
import json
import random
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Any

from websockets.asyncio.client import connect
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from glm52_tbench2.config.signals import Signals, SignalsLost

from .job import Job

KINDS = ("cut", "late", "garbage", "hang", "unmarked", "nan")
HARMLESS = ("late",)
"""An answer that is only late is an answer."""
_VERDICT = ("unmarked", "nan")
_GARBAGE = (
    "\x00\x01 no JSON",
    '{"type": "observation", "data": {"obser',
    "{}",
    "[]",
    '{"type": "observation", "data": {}}',
    '{"type": "observation", "data": {"observation": {"output": [1, 2]}, "reward": "much"}}',
)


class Proxy:
    """A context. While it lasts, the sandbox sessions of `job` go through it."""

    def __init__(self, job: Job, rng: random.Random, share: float) -> None:
        """`share`: of the sessions that are to go wrong."""
        self.struck: Counter[str] = Counter()
        """Kind of fault -> how often."""
        self._job, self._rng, self._share = job, rng, share
        self._upstream = ""
        self._loop = asyncio.new_event_loop()
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._loop.run_forever, daemon=True),
            threading.Thread(target=self._redirect, daemon=True),
        ]

    def __enter__(self) -> "Proxy":
        self._threads[0].start()
        self._server = asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result()
        port = self._server.sockets[0].getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        self._threads[1].start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._threads[1].join()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._threads[0].join()

    def _redirect(self) -> None:
        """Puts the proxy's address wherever the supervisor publishes that of the server."""
        address, signals = None, None
        while not self._over.wait(0.1):
            with suppress(SignalsLost):
                if (now := self._job.store()) is None:
                    continue
                if signals is None or now != address:
                    address, signals = now, Signals.at(now)
                url = signals.get("env/0")
                if url and url != self._url:
                    self._upstream = url.replace("http", "ws", 1)
                    signals.publish("env/0", self._url)

    # --- sessions --------------------------------------------------------------------------------

    async def _serve(self) -> Server:
        return await serve(
            self._session, "127.0.0.1", 0, max_size=None, ping_interval=None, compression=None
        )

    async def _session(self, client: ServerConnection) -> None:
        kind = self._rng.choice(KINDS) if self._rng.random() < self._share else None
        # The first answer is the state, the second the sandbox's start; a start may take minutes.
        at = self._rng.randint(3 if kind == "hang" else 2, 3)
        assert client.request is not None
        with suppress(ConnectionClosed, InvalidHandshake, OSError):
            async with connect(
                self._upstream + client.request.path,
                max_size=None,
                ping_interval=None,
                compression=None,
            ) as server:
                asking = asyncio.create_task(_pump(client, server))
                try:
                    count = 0
                    async for answer in server:
                        count += 1
                        due = "harness" in str(answer) if kind in _VERDICT else count == at
                        if kind is not None and due:
                            self.struck[kind] += 1
                            answer = await self._spoil(kind, str(answer), client)
                        await client.send(answer)
                finally:
                    asking.cancel()

    async def _spoil(self, kind: str, answer: str, client: ServerConnection) -> str:
        """The answer in the place of a good one. Raises ConnectionClosed when there is none."""
        match kind:
            case "late":
                await asyncio.sleep(self._rng.uniform(1, 5))
            case "garbage":
                return self._rng.choice(_GARBAGE)
            case "cut":
                client.transport.abort()
                await client.wait_closed()
            case "hang":
                await client.wait_closed()
            case _:
                told: dict[str, Any] = json.loads(answer)
                if kind == "unmarked":
                    told["data"]["observation"]["info"].pop("harness")
                else:
                    told["data"]["reward"] = float("nan")
                return json.dumps(told)
        return answer


async def _pump(client: ServerConnection, server: Any) -> None:
    try:
        async for question in client:
            await server.send(question)
    finally:
        with suppress(Exception):
            await server.close()


def wait_for_faults(proxy: Proxy, count: int, job: Job) -> None:
    """Until `count` sessions went wrong or the run has ended."""
    while proxy.struck.total() < count and job.alive:
        time.sleep(0.2)
