"""Client of one SGLang server: token ids in; token ids, log-probs and weight versions out."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Any, Literal, Self

import aiohttp

from glm52_tbench2.config.schema import PauseMode

CONNECT_TIMEOUT_S = 5.0
"""Longest wait for a connection, seconds."""
CONTROL_TIMEOUT_S = 30.0
"""Longest wait for an answer that is not a generation, seconds."""
NO_VERSION = "none"
"""What an engine calls its weights when they are no version: what it generates is then refused."""
_RETRY_S = 0.2
_REFUSED = object()


class EngineError(Exception):
    """An engine refused, failed or did not answer. What it may have generated is lost."""


@dataclass(frozen=True)
class Generation:
    """What one request generated; a stop token that ended it is the last of its tokens."""

    output_ids: list[int]
    logprobs: list[float]
    """log-softmax(logits / temperature) of each output token."""
    finish: Literal["stop", "length", "abort"]
    versions: list[int]
    """Weight version that made each output token."""
    cached_tokens: int
    """Input tokens whose keys and values were in the prefix cache."""
    seconds: float
    """From sending the request to having the answer."""


class EngineClient:
    """One engine's HTTP API. Use it within one event loop and close it there.

    Every method raises EngineError, and never sends a request twice: only a connection that was
    refused, so that nothing was sent, is tried again.
    """

    def __init__(self, url: str, timeout_s: float, retry_s: float = CONNECT_TIMEOUT_S) -> None:
        """`url` without a path; `timeout_s` bounds one generation, queueing included.

        A connection that is refused is tried again for `retry_s` seconds.
        """
        self.url = url.rstrip("/")
        self.failed = False
        """Whether a call has failed: the server may be another by now, with other weights."""
        self._timeout_s, self._retry_s = timeout_s, retry_s
        self._session: aiohttp.ClientSession | None = None

    async def generate(
        self,
        input_ids: list[int],
        *,
        max_new_tokens: int,
        temperature: float,
        stop_token_ids: list[int],
        seed: int,
        rid: str,
    ) -> Generation:
        """Samples up to `max_new_tokens` tokens after `input_ids`.

        Ends early on a token of `stop_token_ids` or on the model's own end-of-sequence tokens.
        `seed`, below 2^63, decides the tokens on an engine that is deterministic, as the CPU one
        is. `rid` names the request for `abort`; it must be unique among those in flight.
        """
        began = perf_counter()
        answer = await self._call(
            "POST",
            "/generate",
            {
                "rid": rid,
                "input_ids": input_ids,
                "sampling_params": {
                    "max_new_tokens": max_new_tokens,
                    "temperature": temperature,
                    "stop_token_ids": stop_token_ids,
                    "sampling_seed": seed,
                },
                "return_logprob": True,
            },
            self._timeout_s,
        )
        try:
            return _generation(answer, perf_counter() - began)
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(f"{self.url} answered what is no generation: {error!r}") from error

    async def abort(self, rid: str) -> None:
        """Ends the request `rid`: its `generate` returns with finish "abort". Unknown: nothing."""
        await self._call("POST", "/abort_request", {"rid": rid})

    async def pause(self, mode: PauseMode) -> None:
        """Stops generating; requests wait, with their KV cache (in_place) or without (retract)."""
        await self._call("POST", "/pause_generation", {"mode": mode.value})

    async def weight_version(self) -> int | None:
        """Version of the weights it serves; None: none that counts.

        So it is while an update is under way, after one that failed, and after a start from
        weights that the trainer may be past.
        """
        served = str((await self._call("GET", "/model_info", None)).get("weight_version"))
        return int(served) if served.isdecimal() else None

    async def set_weight_version(self, version: int | None) -> None:
        """Says which version its weights are, None for none that counts. Aborts no request."""
        tag = NO_VERSION if version is None else str(version)
        body = {"new_version": tag, "abort_all_requests": False}
        await self._call("POST", "/update_weight_version", body)

    async def flush_cache(self) -> bool:
        """Empties the prefix cache; False, and nothing is done, while requests hold theirs."""
        return await self.accepts("/flush_cache", {})

    async def accepts(
        self, path: str, body: Mapping[str, Any], timeout_s: float = CONTROL_TIMEOUT_S
    ) -> bool:
        """POSTs what the engine may refuse with 400: whether it did what was asked."""
        return await self._call("POST", path, body, timeout_s, refusable=True) is not _REFUSED

    async def post(
        self, path: str, body: Mapping[str, Any], timeout_s: float = CONTROL_TIMEOUT_S
    ) -> None:
        """POSTs what has no method here."""
        await self._call("POST", path, body, timeout_s)

    async def resume(self) -> None:
        """Goes on generating."""
        await self._call("POST", "/continue_generation", {})

    async def health(self) -> bool:
        """Whether the server answers and is ready; never raises."""
        try:
            await self._call("GET", "/health", None)
        except EngineError:
            return False
        return True

    async def server_info(self) -> dict[str, Any]:
        """The server's arguments and state, as SGLang tells them."""
        return dict(await self._call("GET", "/server_info", None))

    async def close(self) -> None:
        """Closes connections; requests in flight fail."""
        if self._session is not None:
            await self._session.close()
            self._session = None

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
        except EngineError:
            self.failed = True
            raise

    async def _answer(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        timeout_s: float,
        refusable: bool,
    ) -> Any:
        began = perf_counter()
        while True:
            try:
                async with self._open().request(
                    method,
                    self.url + path,
                    json=body,
                    timeout=aiohttp.ClientTimeout(timeout_s, sock_connect=CONNECT_TIMEOUT_S),
                ) as response:
                    text = await response.text()
                    if refusable and response.status == 400:
                        return _REFUSED
                    if response.status != 200:
                        raise EngineError(f"{self.url}{path}: {response.status} {text[:300]}")
                    return _decoded(text)
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
            self._session = aiohttp.ClientSession(connector=connector)
        return self._session


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _generation(answer: Any, seconds: float) -> Generation:
    meta = answer["meta_info"]
    output_ids, logprobs = answer["output_ids"], meta["output_token_logprobs"]
    finish = meta["finish_reason"]["type"]
    if finish not in ("stop", "length", "abort"):
        raise ValueError(f"finish reason {finish}")
    if finish != "abort" and output_ids != [token for _, token, _ in logprobs]:
        raise ValueError("tokens and log-probs do not match")
    output_ids = output_ids[: len(logprobs)]
    versions = [
        int(span["version"])
        for span in meta["weight_versions"]
        for _ in range(span["start"], min(span["end"], len(output_ids)))
    ]
    if len(versions) != len(output_ids):
        raise ValueError("tokens and weight versions do not match")
    return Generation(
        output_ids=output_ids,
        logprobs=[logprob for logprob, *_ in logprobs][: len(output_ids)],
        finish=finish,
        versions=versions,
        cached_tokens=meta["cached_tokens"],
        seconds=seconds,
    )
