"""Another SGLang server, a real one, used as it is."""

import asyncio
from typing import Any

import pytest

from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.engines.client import EngineError
from glm52_tbench2.engines.external import ExternalSglang, Served, client_of, served

from .conftest import Engine, generate


def config(engine: Engine, *overrides: str) -> Any:
    return compose(["experiment=smoke", "engine=external", f"engine.url={engine.url}", *overrides])


def test_what_it_serves(engine: Engine) -> None:
    found = served(config(engine))
    assert found == Served(str(engine.model_dir), found.weights) and found.weights is not None


def test_its_tokens_are_those_of_an_engine_of_ones_own(engine: Engine) -> None:
    async def ask() -> Any:
        client = client_of(config(engine))
        assert isinstance(client, ExternalSglang)
        try:
            return await generate(client, [5, 6, 7])
        finally:
            await client.close()

    theirs, ours = asyncio.run(ask()), engine.generate([5, 6, 7])
    assert theirs.output_ids == ours.output_ids and theirs.logprobs == ours.logprobs
    assert set(theirs.versions) == {0}


def test_it_holds_fewer_tokens_than_a_session_may_have(engine: Engine) -> None:
    with pytest.raises(UserError, match="holds 1024 tokens; lower the first"):
        served(config(engine, "rollout.max_session_tokens=2000"))


def spans(*versions: str) -> dict[str, Any]:
    return {"weight_versions": [{"version": one, "start": 0, "end": 1} for one in versions]}


def test_weights_that_change_meanwhile_are_no_evaluation() -> None:
    client = ExternalSglang("http://127.0.0.1:1", 1.0, None)
    assert client._versions(spans("default"), 2) == [0, 0]
    assert client._versions({}, 1) == [0]
    with pytest.raises(ValueError, match="changed meanwhile"):
        client._versions(spans("default", "7"), 2)


def test_a_server_that_returns_no_log_probs_is_refused(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ExternalSglang._call

    async def call(self: Any, method: str, path: str, body: Any, *more: Any) -> Any:
        if path == "/generate":
            body = {**body, "return_logprob": False}
        return await asked(self, method, path, body, *more)

    monkeypatch.setattr(ExternalSglang, "_call", call)
    with pytest.raises(UserError, match="returns no log-probs of its tokens"):
        served(config(engine))


def test_a_server_that_fails_is_told_from_one_that_refuses(engine: Engine) -> None:
    async def ask() -> Any:
        client = client_of(config(engine))
        try:
            return await generate(client, [5] * 2000)
        finally:
            await client.close()

    with pytest.raises(EngineError):
        asyncio.run(ask())
