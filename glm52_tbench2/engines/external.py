"""Servers that somebody else runs: what they are, and what stands in the way of using one."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.schema import Api, RunConfig

from .client import EngineClient
from .http import EngineError, HttpClient
from .openai import OpenAiClient

KEYS = {
    Api.sglang: ("GLM52_ENDPOINT_KEY",),
    Api.openai: ("GLM52_ENDPOINT_KEY", "OPENAI_API_KEY"),
}
"""Environment variables that hold a key; the first that is set counts."""
_LISTED = 5


@dataclass(frozen=True)
class Served:
    """What a server says that it serves."""

    model: str
    """Its name, or its folder on the server."""
    weights: str | None
    """Their version, as the server calls it; None: it does not say."""


class _Guarded(HttpClient):
    """Refusals that no other try can mend end the run in a sentence, not a sample."""

    def _complain(self, method: str, path: str, error: EngineError) -> None:
        if error.status in (401, 403):
            raise UserError(
                f"engine.url, {self.url}, refuses the key ({error}); put one that is valid "
                "into the environment variable GLM52_ENDPOINT_KEY."
            ) from None
        if error.status == 404 and method == "POST":
            raise UserError(
                f"engine.url, {self.url}, knows no {path} or not the model asked for "
                f"({error}); change engine.url, engine.api or engine.model."
            ) from None


class ExternalOpenAi(_Guarded, OpenAiClient):
    """An OpenAI-compatible endpoint. Methods also raise UserError, for a key that is refused."""


class ExternalSglang(_Guarded, EngineClient):
    """Another SGLang server, whose weights are this run's version 0 whatever it calls them.

    Methods also raise UserError, for a key that is refused.
    """

    def __init__(self, url: str, timeout_s: float, key: str | None) -> None:
        super().__init__(url, timeout_s, key=key)
        self._weights: str | None = None

    async def abort(self, rid: str) -> None:
        """As its base, of a server that may call its weights what it likes."""
        await self._call("POST", "/abort_request", {"rid": rid})

    def _versions(self, meta: Mapping[str, Any], num_tokens: int) -> list[int]:
        for span in meta.get("weight_versions") or ():
            told = str(span["version"])
            if told != (self._weights or told):
                raise ValueError(f"weights {told} after {self._weights}: they changed meanwhile")
            self._weights = told
        return [0] * num_tokens


def client_of(config: RunConfig) -> ExternalSglang | ExternalOpenAi:
    """The client of engine.url, with the key that the environment holds.

    Raises UserError for a key that no header can carry.
    """
    engine = config.engine
    assert engine.url is not None
    found = (os.environ.get(name, "").strip() for name in KEYS[engine.api])
    key = next(filter(None, found), None)
    if key and not key.isprintable():
        raise UserError(
            "The key of engine.url holds a line break or another control sign; write it as one "
            "line into GLM52_ENDPOINT_KEY."
        )
    if engine.api is Api.openai:
        return ExternalOpenAi(engine.url, engine.model, engine.request_timeout_s, key)
    return ExternalSglang(engine.url, engine.request_timeout_s, key)


def served(config: RunConfig) -> Served:
    """What engine.url serves, after one tiny request proved that an evaluation can use it.

    Raises UserError with what stands in the way and its mend.
    """

    async def ask() -> Served:
        client = client_of(config)
        try:
            if isinstance(client, ExternalOpenAi):
                return await _openai(client, config)
            return await _sglang(client, config)
        finally:
            await client.close()

    return asyncio.run(ask())


async def _openai(client: ExternalOpenAi, config: RunConfig) -> Served:
    try:
        models = await client.models()
    except EngineError as error:
        _complain_unreachable(client, error)
        if client.model is None:
            raise UserError(
                f"engine.url, {client.url}, lists no models ({error}); write engine.model=NAME, or "
                "engine.url=http://HOST:PORT of an OpenAI-compatible endpoint."
            ) from None
        models = []
    names = [str(one["id"]) for one in models]
    if client.model is None:
        if len(names) != 1:
            raise UserError(
                f"engine.url, {client.url}, serves {len(names)} models ({_listed(names)}); "
                "write engine.model=NAME."
            )
        client.model = names[0]
    if names and client.model not in names:  # some servers answer to any name
        raise UserError(
            f"engine.model is {client.model}, but engine.url, {client.url}, serves "
            f"{_listed(names)}; write one of these."
        )
    _check_room(client, config, [one for one in models if one["id"] == client.model])
    try:
        await client.chat(
            [{"role": "user", "content": "Hello"}],
            max_tokens=16,
            temperature=config.eval.temperature,
            seed=0,
            rid="probe",
        )
    except EngineError as error:
        _complain_unreachable(client, error)
        raise UserError(
            f"engine.url, {client.url}, does not answer as an OpenAI-compatible endpoint does "
            f"({error}); change engine.url, engine.api or engine.model."
        ) from None
    return Served(client.model, None)


async def _sglang(client: ExternalSglang, config: RunConfig) -> Served:
    try:
        told = await client._call("GET", "/model_info", None)
        model = str(told["model_path"])
        weights = told.get("weight_version")
    except (EngineError, KeyError, TypeError, AttributeError) as error:
        _complain_unreachable(client, error)
        raise UserError(
            f"engine.url, {client.url}, does not answer as SGLang does ({error}); write "
            "engine.api=openai, or engine.url=http://HOST:PORT of an SGLang server."
        ) from None
    try:
        listed = await client._call("GET", "/v1/models", None)
        _check_room(client, config, listed["data"][:1])
        answer = await client._call(
            "POST",
            "/generate",
            {
                "input_ids": [1, 2, 3],
                "sampling_params": {"max_new_tokens": 1},
                "return_logprob": True,
            },
        )
        logprobs = answer["meta_info"].get("output_token_logprobs")
    except (EngineError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"engine.url, {client.url}, generates nothing ({error}); look at that server's log."
        ) from None
    if not logprobs:
        raise UserError(
            f"engine.url, {client.url}, returns no log-probs of its tokens; write "
            "engine.api=openai, which needs none."
        )
    return Served(model, None if weights is None else str(weights))


def _listed(names: list[str]) -> str:
    more = [f"and {len(names) - _LISTED} more"] if len(names) > _LISTED else []
    return ", ".join([*names[:_LISTED], *more]) or "none"


def _complain_unreachable(client: HttpClient, error: Exception) -> None:
    if isinstance(error, EngineError) and error.status is None:
        raise UserError(
            f"engine.url, {client.url}, does not answer ({error}); start the server there, or "
            "write engine.url=http://HOST:PORT of one that runs."
        ) from None


def _check_room(client: HttpClient, config: RunConfig, models: list[dict[str, Any]]) -> None:
    room = next((one["max_model_len"] for one in models if one.get("max_model_len")), None)
    wanted = config.rollout.max_session_tokens
    if room is not None and wanted > room:
        raise UserError(
            f"rollout.max_session_tokens is {wanted}, but what engine.url, {client.url}, serves "
            f"holds {room} tokens; lower the first."
        )
