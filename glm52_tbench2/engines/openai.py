"""Client of an OpenAI-compatible endpoint: messages in, text out.

It returns neither token ids nor log-probs of them, so it serves evaluations only.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal

from .client import Message
from .http import EngineError, HttpClient

MAX_TRIES = 6
"""Times a request is sent that the endpoint turned away, before its sample is lost."""
FIRST_WAIT_S = 1.0
"""Waits between them double, unless the endpoint says how long, seconds."""
LONGEST_WAIT_S = 1800.0
"""And no longer than this, whatever it says, seconds."""
_TURNED_AWAY = (429, 500, 503, 529)
"""Statuses that say that nothing was generated. Behind a gateway's 502 or 504 something may have
been: that answer is lost."""
_FINISHES: dict[str, Literal["stop", "length"]] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "stop",
}


@dataclass(frozen=True)
class Reply:
    """What one request generated."""

    text: str
    finish: Literal["stop", "length"]
    tokens: int | None
    """Tokens generated, as the endpoint counts them; None: it does not say."""
    seconds: float
    """From first sending the request to having the answer."""


class OpenAiClient(HttpClient):
    """One endpoint. Use it within one event loop and close it there.

    A request that was turned away is sent again, a bounded number of times; one that may have been
    taken never is. Every method raises EngineError.
    """

    def __init__(self, url: str, model: str | None, timeout_s: float, key: str | None) -> None:
        """`url`: with or without its last part, /v1; `model`: None before one is chosen."""
        super().__init__(url.rstrip("/").removesuffix("/v1"), timeout_s, key=key)
        self.model = model
        self._cap_name = "max_tokens"
        self._waiting: set[str] = set()
        """Requests that were turned away and not taken since."""

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        temperature: float,
        seed: int,
        rid: str,
    ) -> Reply:
        """The answer to a conversation. `seed` decides it where the endpoint is deterministic."""
        began = perf_counter()
        body = {
            "model": self.model,
            "messages": list(messages),
            "temperature": temperature,
            "seed": seed,
        }
        wait_s = FIRST_WAIT_S
        for left in reversed(range(MAX_TRIES)):
            try:
                answer = await self._call(
                    "POST",
                    "/v1/chat/completions",
                    {**body, self._cap_name: max_tokens},
                    self._timeout_s,
                )
                break
            except EngineError as error:
                if error.status == 400 and "max_completion_tokens" in str(error) and left:
                    self._cap_name = "max_completion_tokens"  # newer models know this name alone
                    continue
                if error.status not in _TURNED_AWAY or not left:
                    self._waiting.discard(rid)
                    raise
                self._waiting.add(rid)
                await asyncio.sleep(min(error.retry_after_s or wait_s, LONGEST_WAIT_S))
                wait_s *= 2
        self._waiting.discard(rid)
        try:
            return _reply(answer, perf_counter() - began)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            self.failed = True
            raise EngineError(
                f"{self.url} answered what is no chat completion: {error!r}", 200
            ) from None

    async def abort(self, rid: str) -> None:
        """Of a request that was given up, which ended with its connection.

        Raises EngineError where the endpoint had turned it away: the time was not the policy's.
        """
        if rid in self._waiting:
            self._waiting.discard(rid)
            raise EngineError(f"{self.url} turned the request away until the time was over")

    async def health(self) -> bool:
        """Whether it answers, be it that it has no list of models."""
        try:
            await self._call("GET", "/v1/models", None)
        except EngineError as error:
            return error.status is not None and error.status < 500
        return True

    async def models(self) -> list[dict[str, Any]]:
        """What it serves: id of each and, where told, max_model_len. Raises EngineError."""
        told = await self._call("GET", "/v1/models", None)
        try:
            return [dict(one) for one in told["data"] if one["id"]]
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(f"{self.url}/v1/models lists no models: {error!r}", 200) from None


def _reply(answer: Any, seconds: float) -> Reply:
    (choice,) = answer["choices"]
    finish = choice["finish_reason"]
    if finish not in _FINISHES:
        raise ValueError(f"finish reason {finish}")
    text = choice["message"].get("content") or ""
    if not isinstance(text, str):
        raise ValueError("the content is no text")
    tokens = (answer.get("usage") or {}).get("completion_tokens")
    if tokens is not None and (type(tokens) is not int or tokens < 0):
        raise ValueError(f"{tokens!r} completion_tokens")
    return Reply(text, _FINISHES[finish], tokens, seconds)
