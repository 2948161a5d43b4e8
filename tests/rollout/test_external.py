"""Episodes with an endpoint that returns text, against a stand-in."""

import asyncio
from typing import Any

import numpy as np
import pytest

from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.engines import http, openai
from glm52_tbench2.rollout.batch import Sample, read_batch, write_batch
from glm52_tbench2.rollout.episode import Episode, Limits, play
from glm52_tbench2.rollout.external import ExternalEndpoints, OpenAiEngine
from glm52_tbench2.rollout.ledger import Ledger
from glm52_tbench2.rollout.player import RolloutError

from ..engines.standin import LOST, SILENT, completion, standin_endpoint
from .fakes import ScriptedSandbox, bash

LIMITS = Limits(
    temperature=0.8,
    max_turn_tokens=60,
    max_session_tokens=400,
    max_turns=4,
    episode_timeout_s=5.0,
    command_timeout_s=5.0,
    observation_chars=100,
)


@pytest.fixture
def endpoint(monkeypatch):
    monkeypatch.setattr(openai, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(http, "CONNECT_TIMEOUT_S", 0.2)
    with standin_endpoint() as made:
        yield made


def endpoints(endpoint, chat) -> ExternalEndpoints:
    config = compose(
        [
            *("experiment=smoke", "engine=external", "engine.api=openai", "engine.model=m"),
            *(f"engine.url={endpoint.url}", "engine.request_timeout_s=0.5"),
            "cluster.deadlines.engine=0.5",
        ]
    )
    return ExternalEndpoints(config, signals=None, chat=chat)  # type: ignore[arg-type]


def played(endpoint, chat, sandbox: ScriptedSandbox | None = None, limits=LIMITS) -> Sample:
    episode = Episode(0, 0, 0, "task", lambda turn: 40 + turn, "rid", 0, 0)
    sandbox = sandbox or ScriptedSandbox()

    async def run() -> Sample:
        found = endpoints(endpoint, chat)
        try:
            engine = await found.engine(0)
            return await play(episode, "sys", limits, chat, engine, sandbox.open)
        finally:
            await found.close()

    return asyncio.run(run())


def script(*answers: Any):
    """Answers the n-th request by the n-th."""
    left = list(answers)
    return lambda request: left.pop(0)


def test_the_conversation_grows_as_text_and_is_recorded_as_tokens(endpoint, chat, tmp_path):
    said = f"<|user|> é\n{bash('ls')}"
    endpoint.reply = script(completion(said, tokens=30), completion("TASK_COMPLETE", tokens=4))
    sample = played(endpoint, chat)
    assert (sample.end_reason, sample.reward, sample.counted_tokens) == ("task_complete", 1.0, 34)
    opening = [{"role": "system", "content": "sys"}, {"role": "user", "content": "do it"}]
    assert [one["messages"] for one in endpoint.requests] == [
        opening,
        [
            *opening,
            {"role": "assistant", "content": said},
            {"role": "user", "content": "ran ls"},
        ],
    ]
    assert [one["seed"] for one in endpoint.requests] == [40, 41]
    assert [one["max_tokens"] for one in endpoint.requests] == [60, 60]
    first, last = sample.turns
    assert chat.text(sample.tokens[first.start : first.end].tolist()) == said
    assert chat.text(sample.tokens[last.start : last.end].tolist()) == "TASK_COMPLETE"
    assert sample.tokens[: sample.prompt_tokens].tolist() == chat.prompt("sys", "do it")
    assert not np.any(sample.rollout_logprobs)
    path = tmp_path / "step.parquet"
    write_batch(path, [sample], "id", 0)
    assert read_batch(path)[0].tokens.tolist() == sample.tokens.tolist()


def test_the_endpoints_count_of_tokens_survives_the_driver(endpoint, chat, tmp_path):
    sample = played(endpoint, chat)
    Ledger(tmp_path, "id", "eval").keep(sample)
    (kept,) = Ledger(tmp_path, "id", "eval").left({}).samples[0]
    assert kept.counted_tokens == sample.counted_tokens == 7


@pytest.mark.parametrize("text", ["", "```bash\nls"])
def test_a_turn_that_is_cut_ends_the_episode(endpoint, chat, text):
    endpoint.reply = script(completion(text, "length", 60))
    sample = played(endpoint, chat)
    assert (sample.end_reason, sample.truncated, sample.counted_tokens) == ("length", True, 60)


@pytest.mark.parametrize("fault", [LOST, SILENT, 502, "<html>", completion("x", "strange")])
def test_a_lost_answer_loses_the_sample_and_is_asked_for_no_second_time(endpoint, chat, fault):
    endpoint.faults = [fault]
    sample = played(endpoint, chat)
    assert sample.end_reason == "engine" and np.isnan(sample.reward)
    assert len(endpoint.requests) == 1


def test_a_wall_clock_spent_on_being_turned_away_is_not_the_policys(endpoint, chat, monkeypatch):
    monkeypatch.setattr(openai, "FIRST_WAIT_S", 60.0)
    limits = Limits(**{**vars(LIMITS), "episode_timeout_s": 0.4})
    endpoint.reply = script(completion(bash("ls")), 503)
    assert played(endpoint, chat, limits=limits).end_reason == "engine"


def test_a_request_that_is_aborted_ends_as_one_of_sglang_does(chat):
    class Endless:
        async def chat(self, *asked: Any, **limits: Any) -> None:
            await asyncio.sleep(1e6)

        async def abort(self, rid: str) -> None:
            pass

    async def ask(end: str) -> str:
        engine = OpenAiEngine(Endless(), chat)  # type: ignore[arg-type]
        asked = asyncio.create_task(
            engine.generate(
                [], max_new_tokens=1, temperature=1.0, stop_token_ids=[], seed=0, rid="r",
                messages=[],
            )
        )  # fmt: skip
        await asyncio.sleep(0.01)
        if end == "abort":
            await engine.abort("r")
        else:
            asked.cancel()
        return (await asked).finish

    assert asyncio.run(ask("abort")) == "abort"
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(ask("cancel"))


def test_a_key_that_expires_ends_the_evaluation(endpoint, chat):
    endpoint.reply = script(completion(bash("ls")), 401)
    with pytest.raises(UserError, match="refuses the key"):
        played(endpoint, chat)


def test_an_endpoint_that_failed_is_waited_for(endpoint, chat):
    async def visit() -> None:
        found = endpoints(endpoint, chat)
        await found.engine(0)
        endpoint.models = 503
        assert not await found._client.health()
        waiting = asyncio.create_task(found.engine(0))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        endpoint.models = 404  # it answers, if without a list
        await waiting
        endpoint.models = 503
        assert not await found._client.health()
        with pytest.raises(RolloutError, match="did not answer within"):
            await found.engine(0)
        await found.close()

    asyncio.run(visit())
