"""Weights into running engines, by every transport; real servers."""

import asyncio
import functools
import os
import shutil
import signal
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file
from transformers import Glm4MoeLiteForCausalLM

from glm52_tbench2.config.schema import PauseMode, WeightTransport
from glm52_tbench2.engines.client import EngineClient, EngineError, Generation
from glm52_tbench2.engines.weights import weights_dir
from glm52_tbench2.engines.weights.sender import buckets, serving

from .conftest import VOCAB, Engine, FirstModel, Senders, generate, log_probs, random_model, served

PROMPT = [(7 * i + 11) % (VOCAB - 2) + 2 for i in range(60)]
Tensors = Iterator[tuple[str, torch.Tensor]]
every_transport = pytest.mark.parametrize("transport", WeightTransport)
in_parts = pytest.mark.parametrize(
    "transport", [WeightTransport.tensor, WeightTransport.distributed]
)


def close(a: list[float], b: list[float]) -> bool:
    return len(a) == len(b) and all(abs(x - y) <= 1e-4 for x, y in zip(a, b, strict=True))


@functools.cache
def model_of(seed: int) -> Glm4MoeLiteForCausalLM:
    return random_model(seed)


@functools.cache
def weights_of(seed: int) -> dict[str, torch.Tensor]:
    """The random model of `seed`, by the names in its file."""
    with tempfile.TemporaryDirectory() as folder:
        model_of(seed).save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def disturbed(seed: int, disturb: Callable[[], object]) -> Tensors:
    """Those weights, with something happening in the middle of them."""
    tensors = list(weights_of(seed).items())
    yield from tensors[: len(tensors) * 2 // 3]
    thread = threading.Thread(target=disturb)  # here a loop is running
    thread.start()
    thread.join()
    yield from tensors[len(tensors) * 2 // 3 :]


def serves(engine: Engine, version: int, seed: int) -> bool:
    """Whether the engine generates with the random model of `seed`, from an empty cache."""
    out = engine.generate(PROMPT)
    expected = log_probs(model_of(seed), PROMPT, out.output_ids, 0.8)
    return (
        (out.cached_tokens, set(out.versions)) == (0, {version})
        and close(out.logprobs, expected)
    )  # fmt: skip


@pytest.fixture(autouse=True)
def first_weights(engine: Engine, senders: Senders) -> Iterator[None]:
    """After the test the engine serves the first model again, as version 0, with an empty cache."""
    yield
    senders(WeightTransport.disk).push([engine.url], iter(()), 0)


@pytest.fixture(scope="module")
def second(first_model: FirstModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine that is started as in a run whose weights go through no folder; it may be killed.

    The last test kills it.
    """
    run_dir = tmp_path_factory.mktemp("second")
    with served(first_model, run_dir, "engine.transport=distributed") as made:
        yield made


@every_transport
@pytest.mark.parametrize("mode", PauseMode)
def test_weights_change_in_the_middle_of_a_generation(
    engine: Engine, senders: Senders, transport: WeightTransport, mode: PauseMode
) -> None:
    sender, pauses = senders(transport, mode), []

    async def update(client: EngineClient) -> Generation:
        running = asyncio.create_task(generate(client, PROMPT, max_new_tokens=300))
        await generate(client, PROMPT, max_new_tokens=5)
        args = ([engine.url], weights_of(3).items(), 3)
        pauses.extend(await asyncio.to_thread(sender.push, *args))
        return await running

    out = engine.use(update)
    change = out.versions.index(3)
    assert 0 < change < 300
    assert out.versions == [0] * change + [3] * (300 - change)
    before = log_probs(engine.model, PROMPT, out.output_ids, 0.8)
    assert close(out.logprobs[:change], before[:change])
    if mode is PauseMode.retract:  # in_place goes on from the old weights' keys and values
        after = log_probs(model_of(3), PROMPT, out.output_ids, 0.8)
        assert close(out.logprobs[change:], after[change:])
    assert 0 < pauses[0] < out.seconds


@every_transport
@pytest.mark.parametrize("mode", PauseMode)
def test_new_weights_serve_new_requests_from_an_empty_cache(
    engine: Engine, senders: Senders, transport: WeightTransport, mode: PauseMode
) -> None:
    engine.generate(PROMPT)
    senders(transport, mode).push([engine.url], weights_of(4).items(), 4)
    assert serves(engine, 4, seed=4)


@every_transport
def test_engine_that_does_not_take_the_weights_is_named(
    engine: Engine, senders: Senders, transport: WeightTransport
) -> None:
    dead = "http://127.0.0.1:9"
    with pytest.raises(EngineError, match=dead) as raised:
        senders(transport).push([engine.url, dead], weights_of(5).items(), 5)
    took = "1 of 2 engines" in str(raised.value)
    assert serving([engine.url, dead]) == {engine.url: 5 if took else 0}


@every_transport
def test_engine_left_in_the_middle_generates_nothing_until_it_is_mended(
    engine: Engine, senders: Senders, transport: WeightTransport
) -> None:
    sender = senders(transport)

    async def during(client: EngineClient) -> Generation:
        if transport is WeightTransport.disk:
            await asyncio.to_thread(sender.push, [], weights_of(6).items(), 6)
            shutil.rmtree(weights_dir(sender.config, senders.run_dir) / "version_000006")
            failing: Tensors = iter(())
        else:
            failing = disturbed(6, lambda: engine.use(close_update))
        with pytest.raises(EngineError, match=engine.url):
            await asyncio.to_thread(sender.push, [engine.url], failing, 6)
        assert await client.weight_version() is None
        asked = asyncio.create_task(generate(client, PROMPT))
        await asyncio.sleep(0.5)
        assert not asked.done()
        await asyncio.to_thread(sender.push, [engine.url], weights_of(7).items(), 7)
        return await asked

    out = engine.use(during)
    assert set(out.versions) == {7}
    assert close(out.logprobs, log_probs(model_of(7), PROMPT, out.output_ids, 0.8))


async def close_update(client: EngineClient) -> None:
    """Makes the engine refuse the weights that follow."""
    await client.post("/end_weight_update", {})


@in_parts
def test_weights_unlike_the_starting_ones_are_never_served(
    engine: Engine, senders: Senders, transport: WeightTransport
) -> None:
    incomplete = dict(list(weights_of(8).items())[:-1])
    with pytest.raises(ValueError, match="1 tensors differ from the starting weights"):
        senders(transport).push([engine.url], incomplete.items(), 8)
    assert serving([engine.url]) == {engine.url: None}


@in_parts
def test_one_bucket_is_held_at_a_time(
    engine: Engine, senders: Senders, transport: WeightTransport
) -> None:
    alive, most = 0, 0

    def made() -> Tensors:
        nonlocal alive, most

        def gone() -> None:
            nonlocal alive
            alive -= 1

        for name, tensor in weights_of(9).items():
            copy = tensor.clone()
            weakref.finalize(copy, gone)
            alive, most = alive + 1, max(most, alive + 1)
            yield name, copy
            del copy

    sender = senders(transport)
    largest = max(map(len, buckets(weights_of(9).items(), sender.config.engine.bucket_bytes)))
    sender.push([engine.url], made(), 9)
    assert most <= largest + 2 < len(weights_of(9))
    assert serves(engine, 9, seed=9)


def test_engine_of_a_run_without_folders_starts_with_no_version(second: Engine) -> None:
    assert serving([second.url]) == {second.url: None}
    with pytest.raises(EngineError, match="no generation"):
        second.generate(PROMPT)


@every_transport
def test_several_engines_take_the_weights_at_once(
    engine: Engine, second: Engine, senders: Senders, transport: WeightTransport
) -> None:
    urls = [engine.url, second.url]
    assert len(senders(transport).push(urls, weights_of(10).items(), 10)) == 2
    assert serves(engine, 10, seed=10)
    assert serves(second, 10, seed=10)


@pytest.mark.parametrize("refusing", [0, 1])
def test_refusal_of_one_engine_holds_up_nobody(
    engine: Engine, second: Engine, senders: Senders, refusing: int
) -> None:
    engines = [engine, second]
    urls = [engine.url, second.url]
    sender = senders(WeightTransport.distributed)
    sender.push(urls, weights_of(11).items(), 11)
    failing = disturbed(12, lambda: engines[refusing].use(close_update))
    with pytest.raises(EngineError, match=f"2 of 2 engines.*{urls[refusing]}.*must run between"):
        sender.push(urls, failing, 12)
    assert serving(urls) == dict.fromkeys(urls)
    sender.push(urls, weights_of(12).items(), 12)
    assert all(serves(each, 12, seed=12) for each in engines)


@in_parts
def test_engine_lost_before_the_first_weight_gives_no_other_a_version_it_lacks(
    engine: Engine,
    second: Engine,
    senders: Senders,
    transport: WeightTransport,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pause = EngineClient.pause

    async def lost(client: EngineClient, mode: PauseMode) -> None:
        if client.url == second.url:
            raise EngineError(f"{client.url}: lost")
        await pause(client, mode)

    with monkeypatch.context() as patch:
        patch.setattr(EngineClient, "pause", lost)
        with pytest.raises(EngineError, match=f"{second.url}: lost"):
            senders(transport).push([engine.url, second.url], weights_of(16).items(), 16)
    (served_,) = serving([engine.url]).values()
    assert served_ is None or serves(engine, 16, seed=16)


def test_group_listens_nowhere_new(engine: Engine, senders: Senders) -> None:
    senders(WeightTransport.distributed).push([engine.url], weights_of(13).items(), 13)
    listening = [
        connection.laddr.ip
        for process in (*engine.tree(), psutil.Process())
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert set(listening) == {"127.0.0.1"}


def test_engine_that_dies_in_the_middle_leaves_no_other_on_half_the_weights(
    engine: Engine, second: Engine, senders: Senders
) -> None:
    urls = [engine.url, second.url]
    sender = senders(WeightTransport.distributed)
    sender.push(urls, weights_of(14).items(), 14)

    def kill() -> None:
        for process in second.tree():
            os.kill(process.pid, signal.SIGKILL)

    with pytest.raises(EngineError, match=f"2 of 2 engines.*{second.url}"):
        sender.push(urls, disturbed(15, kill), 15)
    assert serving(urls) == {engine.url: None}
    sender.push([engine.url], weights_of(15).items(), 15)
    assert serves(engine, 15, seed=15)
