"""Client of one SGLang server: token ids in; token ids, log-probs and weight versions out."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal

from glm52_tbench2.config.schema import PauseMode

from .http import CONTROL_TIMEOUT_S, REFUSED, EngineError, HttpClient

NO_VERSION = "none"
"""What an engine calls its weights when they are no version: what it generates is then refused."""
LOAD_TIMEOUT_S = 600.0
"""Longest wait for an engine to load a version, seconds."""
_LOOK_S = 0.5

Message = Mapping[str, str]
"""One message of a conversation: its role and its content, as text."""


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
    counted_tokens: int | None = None
    """Tokens as the endpoint counts them, where those above are not its own."""


class EngineClient(HttpClient):
    """One engine's HTTP API. Use it within one event loop and close it there.

    Every method raises EngineError, and never sends a request twice: only a connection that was
    refused, so that nothing was sent, is tried again.
    """

    async def generate(
        self,
        input_ids: list[int],
        *,
        max_new_tokens: int,
        temperature: float,
        stop_token_ids: list[int],
        seed: int,
        rid: str,
        messages: Sequence[Message] = (),
    ) -> Generation:
        """Samples up to `max_new_tokens` tokens after `input_ids`.

        Ends early on a token of `stop_token_ids` or on the model's own end-of-sequence tokens.
        `seed`, below 2^63, decides the tokens on an engine that is deterministic, as the CPU one
        is. `rid` names the request for `abort`; it must be unique among those in flight.
        `messages` is for endpoints that take no token ids, and not read here.
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
            return self._generation(answer, perf_counter() - began)
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(
                f"{self.url} answered what is no generation: {error!r}", 200
            ) from error

    async def abort(self, rid: str) -> None:
        """Ends the request `rid`: its `generate` returns with finish "abort". Unknown: nothing.

        Returns when the engine generates: one whose weights are being updated is waited for. Raises
        EngineError, too, for one that goes without them: no request of it was going to end.
        """
        await self._call("POST", "/abort_request", {"rid": rid})
        began = perf_counter()
        while await self.weight_version() is None:
            if perf_counter() - began > LOAD_TIMEOUT_S:
                raise EngineError(f"{self.url} waits for weights, and generates nothing meanwhile")
            await asyncio.sleep(_LOOK_S)

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
        return await self._call("POST", path, body, timeout_s, refusable=True) is not REFUSED

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

    def _versions(self, meta: Mapping[str, Any], num_tokens: int) -> list[int]:
        """Weight version of each output token. Raises KeyError, TypeError or ValueError."""
        return [
            int(span["version"])
            for span in meta["weight_versions"]
            for _ in range(span["start"], min(span["end"], num_tokens))
        ]

    def _generation(self, answer: Any, seconds: float) -> Generation:
        meta = answer["meta_info"]
        output_ids, logprobs = answer["output_ids"], meta["output_token_logprobs"]
        finish = meta["finish_reason"]["type"]
        if finish not in ("stop", "length", "abort"):
            raise ValueError(f"finish reason {finish}")
        if finish != "abort" and output_ids != [token for _, token, _ in logprobs]:
            raise ValueError("tokens and log-probs do not match")
        output_ids = output_ids[: len(logprobs)]
        versions = self._versions(meta, len(output_ids))
        if len(versions) != len(output_ids):
            raise ValueError("tokens and weight versions do not match")
        return Generation(
            output_ids=output_ids,
            # JSON has no NaN, and SGLang writes null.
            logprobs=[math.nan if logprob is None else logprob for logprob, *_ in logprobs][
                : len(output_ids)
            ],
            finish=finish,
            versions=versions,
            cached_tokens=meta["cached_tokens"],
            seconds=seconds,
        )
