"""Requests to an engine over HTTP, each sent once."""

import asyncio
from collections.abc import Mapping
from time import perf_counter
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson

CONNECT_TIMEOUT_S = 5.0
"""Longest wait for a connection, seconds."""
CONTROL_TIMEOUT_S = 30.0
"""Longest wait for an answer that is not a generation, seconds."""
REFUSED = object()
"""The answer to a request that a server may refuse, and has."""
_RETRY_S = 0.2


class EngineError(Exception):
    """An engine refused, failed or did not answer. What it may have generated is lost."""

    def __init__(
        self, told: str, status: int | None = None, retry_after_s: float | None = None
    ) -> None:
        """
        Args:
            status: of the answer; None: there was none.
            retry_after_s: how long the server asks to wait, seconds.
        """
        super().__init__(told)
        self.status, self.retry_after_s = status, retry_after_s


class HttpClient:
    """One server. Only a connection that was refused, so that nothing was sent, is tried again."""

    def __init__(
        self,
        url: str,
        timeout_s: float,
        retry_s: float = CONNECT_TIMEOUT_S,
        key: str | None = None,
    ) -> None:
        """
        Args:
            url: without a path.
            timeout_s: bounds one generation, queueing included.
            retry_s: how long a connection that is refused is tried again, seconds.
            key: sent as a bearer token, and in no error.
        """
        self.url = url.rstrip("/")
        self.failed = False
        """Whether a call has failed: the server may be another by now, with other weights."""
        self._timeout_s, self._retry_s, self._key = timeout_s, retry_s, key
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Closes connections; requests in flight fail."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        timeout_s: float = CONTROL_TIMEOUT_S,
        refusable: bool = False,
    ) -> Any:
        try:
            return await self._answer(method, path, body, timeout_s, refusable)
        except EngineError as error:
            self.failed = True
            self._complain(method, path, error)
            raise

    def _complain(self, method: str, path: str, error: EngineError) -> None:
        """Where a kind of client raises something else for some errors."""

    async def _answer(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        timeout_s: float,
        refusable: bool,
    ) -> Any:
        began = perf_counter()
        # A long conversation takes the standard library ten times as long, and nobody else runs.
        data = None if body is None else orjson.dumps(body)
        while True:
            try:
                async with self._open().request(
                    method,
                    self.url + path,
                    data=data,
                    headers={"Content-Type": "application/json"},
                    timeout=aiohttp.ClientTimeout(timeout_s, sock_connect=CONNECT_TIMEOUT_S),
                ) as response:
                    answer = await response.read()
                    if refusable and response.status == 400:
                        return REFUSED
                    if response.status != 200:
                        text = self._without_key(answer.decode(errors="replace"))
                        raise EngineError(
                            f"{self.url}{path}: {response.status} {text[:300]}",
                            response.status,
                            _seconds(response.headers.get("Retry-After")),
                        )
                    return _decoded(answer)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                if perf_counter() - began > self._retry_s:
                    raise EngineError(f"{self.url}{path}: no connection ({error})") from error
                await asyncio.sleep(_RETRY_S)
            except TimeoutError as error:
                raise EngineError(f"{self.url}{path}: no answer in {timeout_s:g} s") from error
            except (aiohttp.ClientError, OSError) as error:
                raise EngineError(f"{self.url}{path}: {error!r}") from error

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            # A connection each: one kept open may be closed by the server just as a request is
            # sent on it, and then nobody knows whether the request was taken.
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
            self._session = aiohttp.ClientSession(connector=connector, headers=headers)
        return self._session

    def _without_key(self, text: str) -> str:
        """What a server says, which may repeat the key it refused."""
        return text if self._key is None else text.replace(self._key, "(key)")


def _decoded(answer: bytes) -> Any:
    try:
        return orjson.loads(answer)
    except orjson.JSONDecodeError:
        return answer.decode(errors="replace")


def _seconds(told: str | None) -> float | None:
    """A Retry-After header in seconds; None without one, or where it is a date."""
    try:
        return None if told is None else max(0.0, float(told))
    except ValueError:
        return None
