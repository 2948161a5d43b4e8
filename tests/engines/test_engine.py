"""What the project relies on in SGLang, on a real server."""

import asyncio
import subprocess
import sys
import time
from collections import Counter

import psutil
import pytest

from glm52_tbench2.engines import launch
from glm52_tbench2.engines.client import EngineClient, EngineError, Generation

from .conftest import VOCAB, Engine, generate, log_probs

PROMPT = [(7 * i + 11) % (VOCAB - 2) + 2 for i in range(60)]


def close(a: list[float], b: list[float]) -> bool:
    return len(a) == len(b) and all(abs(x - y) <= 1e-4 for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("temperature", [1.0, 0.8, 0.5])
def test_log_probs_are_those_of_transformers(engine: Engine, temperature: float) -> None:
    out = engine.generate(PROMPT, temperature=temperature, max_new_tokens=60)
    assert close(out.logprobs, log_probs(engine.model, PROMPT, out.output_ids, temperature))


def test_generation_tells_where_its_tokens_come_from(engine: Engine) -> None:
    out = engine.generate(PROMPT, max_new_tokens=5)
    assert (len(out.output_ids), out.finish, out.versions) == (5, "length", [0] * 5)


def test_seed_decides_the_tokens(engine: Engine) -> None:
    outs = [engine.generate(PROMPT, seed=seed).output_ids for seed in (1, 2, 1, 2**62)]
    assert outs[0] == outs[2]
    assert len({tuple(out) for out in outs}) == 3


def empty_cache(engine: Engine) -> None:
    """The engine refuses while it has not yet let go of a request that was answered."""
    deadline = time.monotonic() + 60
    while not engine.use(EngineClient.flush_cache):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_generation_is_the_same_to_the_bit_alone_in_a_crowd_and_from_the_cache(
    engine: Engine,
) -> None:
    prompts = [[*PROMPT[: 3 + 5 * (i % 9)], *range(2, 2 + i % 7)] for i in range(24)]

    async def one(client: EngineClient, i: int) -> Generation:
        await asyncio.sleep(0.03 * (i % 5))
        return await generate(client, prompts[i], seed=i, max_new_tokens=20 + i)

    async def alone(client: EngineClient) -> list[Generation]:
        return [await one(client, i) for i in range(24)]

    async def together(client: EngineClient) -> list[Generation]:
        return await asyncio.gather(*(one(client, i) for i in range(24)))

    def bits(outs: list[Generation]) -> list[tuple[list[int], list[float]]]:
        return [(out.output_ids, out.logprobs) for out in outs]

    crowd = engine.use(together)
    cached = engine.use(alone)
    empty_cache(engine)
    single = engine.use(alone)
    assert any(out.cached_tokens > single[i].cached_tokens for i, out in enumerate(cached))
    assert bits(crowd) == bits(single) == bits(cached)


def test_turn_is_the_same_to_the_bit_whether_the_turn_before_is_cached_or_not(
    engine: Engine,
) -> None:
    first = engine.generate([5, *PROMPT])
    second = [5, *PROMPT, *first.output_ids, 9, 9]
    cached = engine.generate(second, seed=1)
    empty_cache(engine)
    fresh = engine.generate(second, seed=1)
    assert cached.cached_tokens > len(PROMPT) + 10 > fresh.cached_tokens
    assert (cached.output_ids, cached.logprobs) == (fresh.output_ids, fresh.logprobs)


def test_tokens_are_drawn_from_the_policy(engine: Engine) -> None:
    draws = 300

    async def sample(client: EngineClient) -> list[Generation]:
        asked = (generate(client, PROMPT, seed=i, max_new_tokens=1) for i in range(draws))
        return await asyncio.gather(*asked)

    outs = engine.use(sample)
    token, count = Counter(out.output_ids[0] for out in outs).most_common(1)[0]
    (log_prob,) = log_probs(engine.model, PROMPT, [token], 0.8)
    p = 2.718281828**log_prob
    assert abs(count / draws - p) < 5 * (p * (1 - p) / draws) ** 0.5


def test_shared_prefix_is_taken_from_the_cache(engine: Engine) -> None:
    fresh = [3, *PROMPT]
    assert engine.generate([*fresh, 5]).cached_tokens == 0
    assert engine.generate([*fresh, 6]).cached_tokens == len(fresh)


def test_generated_turn_is_taken_from_the_cache(engine: Engine) -> None:
    fresh = [4, *PROMPT]
    turn = engine.generate(fresh).output_ids
    again = engine.generate([*fresh, *turn, 9, 9])
    # All but the last token generated, whose keys and values are not computed yet.
    assert again.cached_tokens == len(fresh) + len(turn) - 1


def test_stop_token_ends_a_turn_and_is_kept(engine: Engine) -> None:
    whole = engine.generate(PROMPT)
    stop = whole.output_ids[10]
    out = engine.generate(PROMPT, stop_token_ids=[stop])
    assert out.finish == "stop"
    assert out.output_ids == whole.output_ids[: whole.output_ids.index(stop) + 1]
    assert len(out.logprobs) == len(out.versions) == len(out.output_ids)


def test_aborted_request_returns_what_it_has(engine: Engine) -> None:
    async def abort_one(client: EngineClient) -> tuple[Generation, Generation]:
        running = asyncio.create_task(generate(client, PROMPT, max_new_tokens=900, rid="to-abort"))
        other = asyncio.create_task(generate(client, PROMPT, max_new_tokens=60))
        await generate(client, PROMPT, max_new_tokens=5)
        await client.abort("to-abort")
        return await running, await other

    aborted, other = engine.use(abort_one)
    assert (aborted.finish, other.finish) == ("abort", "length")
    assert len(aborted.output_ids) == len(aborted.logprobs) == len(aborted.versions) < 900


def test_request_that_cannot_be_served_is_an_error(engine: Engine) -> None:
    with pytest.raises(EngineError, match="400"):
        engine.generate([5] * 2000)


def test_server_listens_on_the_loopback_alone(engine: Engine) -> None:
    listening = [
        connection.laddr.ip
        for process in engine.tree()
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert set(listening) == {"127.0.0.1"}


def test_idle_server_leaves_the_cores_alone(engine: Engine) -> None:
    def used() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in engine.tree())

    before = used()
    time.sleep(3)
    assert used() - before < 1.0


def test_server_keeps_its_files_in_its_own_folder(engine: Engine) -> None:
    folder = launch.scratch_dir(engine.run_dir, 0)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "loads").exists()


def test_stand_ins_stay_out_of_every_other_process() -> None:
    code = (
        "import sys; from glm52_tbench2.engines import client, launch, weights\n"
        "print([e for e in sys.path if 'engines/cpu' in e],"
        " {'sgl_kernel', 'glm52_tbench2.engines.cpu.standin'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[] set()\n", done.stderr
