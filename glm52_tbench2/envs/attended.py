"""Sessions that end when their client is gone, whatever they are doing then.

OpenEnv looks at a session's connection between two actions only, and an action may take hours: so
long would the places of a driver that was killed be missing to the next one.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import ContextVar
from typing import Any, TypeVar

_GONE: ContextVar[asyncio.Event | None] = ContextVar("gone", default=None)
"""Set when the client of the connection at hand is gone; None: nobody watches it."""
T = TypeVar("T")


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


class Attended:
    """Middleware of an ASGI application that listens on a WebSocket while an action runs."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        gone, messages = asyncio.Event(), asyncio.Queue[Any]()
        _GONE.set(gone)  # for this connection, which has a task of its own

        async def listen() -> None:
            while not gone.is_set():
                message = await receive()
                if message["type"] == "websocket.disconnect":
                    gone.set()
                messages.put_nowait(message)

        listening = asyncio.create_task(listen())
        try:
            await self._app(scope, messages.get, send)
        finally:
            listening.cancel()


async def attended(work: Callable[[], T], executor: Executor) -> T:
    """What `work` gives, in a thread of `executor`. Raises ClientGone, while it still runs."""
    running = asyncio.get_running_loop().run_in_executor(executor, work)
    gone = _GONE.get()
    if gone is not None:
        leaving = asyncio.create_task(gone.wait())
        first: list[asyncio.Future[Any]] = [running, leaving]
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        if not running.done():
            running.add_done_callback(lambda ended: ended.exception())  # which nobody asks for
            raise ClientGone("the client is gone")
    return await running
