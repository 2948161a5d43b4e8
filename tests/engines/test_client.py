"""The client against a server that fails as servers do; the real one is in test_engine.py."""

import asyncio
import math
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from aiohttp import web

from glm52_tbench2.engines import client as client_module
from glm52_tbench2.engines.client import NO_VERSION, EngineClient, EngineError, Generation

T = TypeVar("T")

ANSWER: dict[str, Any] = {
    "output_ids": [5, 6, 7],
    "meta_info": {
        "output_token_logprobs": [[-0.1, 5, None], [-0.2, 6, None], [-0.3, 7, None]],
        "finish_reason": {"type": "stop", "matched": 7},
        "weight_versions": [
            {"version": "3", "start": 0, "end": 1},
            {"version": "4", "start": 1, "end": 3},
        ],
        "cached_tokens": 2,
    },
}


def changed(**meta: Any) -> dict[str, Any]:
    return {**ANSWER, "meta_info": ANSWER["meta_info"] | meta}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class Server:
    """Answers /generate by `answer`, and counts."""

    def __init__(self, answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> None:
        self.requests: list[dict[str, Any]] = []
        self._answer = answer

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(await request.json())
        return await self._answer(request)

    async def start(self, port: int) -> web.AppRunner:
        app = web.Application()
        app.router.add_post("/generate", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        return runner


async def generate(client: EngineClient) -> Generation:
    return await client.generate(
        [1, 2], max_new_tokens=9, temperature=0.8, stop_token_ids=[7], seed=11, rid="r"
    )


def ask(server: Server, timeout_s: float = 10) -> Generation:
    async def run() -> Generation:
        port = free_port()
        runner = await server.start(port)
        try:
            async with EngineClient(f"http://127.0.0.1:{port}/", timeout_s) as client:
                return await generate(client)
        finally:
            await runner.cleanup()

    return asyncio.run(run())


def answering(body: Any, status: int = 200) -> Server:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=status)

    return Server(answer)


def test_answer_becomes_tokens_log_probs_and_versions() -> None:
    server = answering(ANSWER)
    out = ask(server)
    assert out.output_ids == [5, 6, 7]
    assert out.logprobs == [-0.1, -0.2, -0.3]
    assert out.versions == [3, 4, 4]
    assert (out.finish, out.cached_tokens) == ("stop", 2)


def test_request_carries_its_seed_and_its_limits() -> None:
    server = answering(ANSWER)
    ask(server)
    assert server.requests[0]["sampling_params"] == {
        "max_new_tokens": 9,
        "temperature": 0.8,
        "stop_token_ids": [7],
        "sampling_seed": 11,
    }


@pytest.mark.parametrize(
    "body",
    [
        "no generation",
        {"output_ids": [1]},
        {**ANSWER, "output_ids": [5, 6, 8]},
        changed(weight_versions=[{"version": "3", "start": 0, "end": 2}]),
        changed(weight_versions=[{"version": "default", "start": 0, "end": 3}]),
        changed(finish_reason={"type": "odd"}),
    ],
    ids=["text", "no meta", "other tokens", "version missing", "version unnamed", "finish"],
)
def test_answer_that_does_not_add_up_is_an_error(body: Any) -> None:
    with pytest.raises(EngineError, match="no generation"):
        ask(answering(body))


def test_log_prob_that_is_no_number_stays_one_that_is_not_finite() -> None:
    """SGLang writes NaN as null; the episode then ends for the engine's sake."""
    told = [[-0.1, 5, None], [None, 6, None], [-0.3, 7, None]]
    out = ask(answering(changed(output_token_logprobs=told)))
    assert math.isnan(out.logprobs[1])


@pytest.mark.parametrize("update", ["none", "passing", "failed"])
def test_engine_that_waits_for_weights_is_not_taken_for_one_that_generates(
    monkeypatch: pytest.MonkeyPatch, update: str
) -> None:
    """The wall clock of an episode may run out in the course of any update."""
    monkeypatch.setattr(client_module, "LOAD_TIMEOUT_S", 0.1)
    monkeypatch.setattr(client_module, "_LOOK_S", 0.01)
    versions = {
        "none": ["3"],
        "passing": [NO_VERSION, NO_VERSION, "4"],
        "failed": [NO_VERSION] * 1000,
    }[update]

    async def run() -> None:
        app = web.Application()
        app.router.add_post("/abort_request", answer(lambda: {}))
        app.router.add_get("/model_info", answer(lambda: {"weight_version": versions.pop(0)}))
        runner, port = web.AppRunner(app), free_port()
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        try:
            async with EngineClient(f"http://127.0.0.1:{port}", 10) as client:
                await client.abort("r")
        finally:
            await runner.cleanup()

    def answer(
        body: Callable[[], Any],
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            return web.json_response(body())

        return handle

    if update == "failed":
        with pytest.raises(EngineError, match="waits for weights"):
            asyncio.run(run())
    else:
        asyncio.run(run())
        assert not versions


def test_request_aborted_before_its_first_token_is_empty() -> None:
    meta = {"output_token_logprobs": [], "weight_versions": [], "finish_reason": {"type": "abort"}}
    out = ask(answering({**changed(**meta), "output_ids": []}))
    assert (out.finish, out.output_ids, out.versions) == ("abort", [], [])


def test_refusal_is_an_error_that_says_why() -> None:
    with pytest.raises(EngineError, match=r"503.*full"):
        ask(answering({"message": "full"}, status=503))


@pytest.mark.parametrize("kind", ["refused", "cut"])
def test_request_that_was_sent_is_never_sent_again(kind: str) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if kind == "cut":
            assert request.transport is not None
            request.transport.abort()
        return web.Response(status=500)

    server = Server(answer)
    with pytest.raises(EngineError):
        ask(server)
    assert len(server.requests) == 1


def test_answer_that_takes_too_long_is_an_error() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(5)
        return web.json_response(ANSWER)

    server = Server(answer)
    with pytest.raises(EngineError, match=r"no answer in 0\.3 s"):
        ask(server, timeout_s=0.3)
    assert len(server.requests) == 1


def test_connection_refused_is_tried_again() -> None:
    async def run() -> Generation:
        port, server = free_port(), answering(ANSWER)
        async with EngineClient(f"http://127.0.0.1:{port}", 10) as client:
            asked = asyncio.create_task(generate(client))
            await asyncio.sleep(0.3)
            runner = await server.start(port)
            try:
                return await asked
            finally:
                await runner.cleanup()

    assert asyncio.run(run()).output_ids == [5, 6, 7]


def test_server_that_is_not_there_is_an_error() -> None:
    async def run() -> bool:
        async with EngineClient(f"http://127.0.0.1:{free_port()}", 10, retry_s=0.3) as client:
            with pytest.raises(EngineError, match="no connection"):
                await generate(client)
            return await client.health()

    assert asyncio.run(run()) is False
