"""Endpoints that return text, against a stand-in that fails as they do."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.engines import http, openai
from glm52_tbench2.engines.external import Served, client_of, served
from glm52_tbench2.engines.http import EngineError
from glm52_tbench2.engines.openai import OpenAiClient, Reply

from .standin import KEY, LOST, SILENT, StandInEndpoint, completion, standin_endpoint

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture
def endpoint():
    with standin_endpoint() as made:
        yield made


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(openai, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(http, "CONNECT_TIMEOUT_S", 0.3)
    for name in ("GLM52_ENDPOINT_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def config(endpoint: StandInEndpoint, *overrides: str):
    return compose(
        [
            *("experiment=smoke", "engine=external", "engine.api=openai"),
            *(f"engine.url={endpoint.url}", "engine.request_timeout_s=0.5", *overrides),
        ]
    )


def chat(endpoint: StandInEndpoint, **changes: Any) -> Reply:
    async def ask() -> Reply:
        client = OpenAiClient(endpoint.url, "some-model", 0.5, KEY)
        try:
            return await _ask(client, **changes)
        finally:
            await client.close()

    return asyncio.run(ask())


async def _ask(client: OpenAiClient, **changes: Any) -> Reply:
    asked = {"max_tokens": 5, "temperature": 0.8, "seed": 3, "rid": "r"} | changes
    return await client.chat(MESSAGES, **asked)


def test_a_request_says_what_is_wanted_and_carries_the_key(endpoint):
    reply = chat(endpoint)
    assert (reply.text, reply.finish, reply.tokens) == ("TASK_COMPLETE", "stop", 7)
    assert endpoint.requests == [
        {
            "model": "some-model",
            "messages": MESSAGES,
            "temperature": 0.8,
            "seed": 3,
            "max_tokens": 5,
        }
    ]
    assert endpoint.keys == [f"Bearer {KEY}"]


def test_a_url_may_end_in_its_version(endpoint):
    client = OpenAiClient(f"{endpoint.url}/v1/", None, 1.0, None)
    assert client.url == endpoint.url


def test_an_answer_need_neither_count_nor_hold_text(endpoint):
    endpoint.faults = [completion(None, "length", None)]
    reply = chat(endpoint)
    assert (reply.text, reply.finish, reply.tokens) == ("", "length", None)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_request_that_was_turned_away_is_sent_again(endpoint, status):
    endpoint.faults = [status, status]
    assert chat(endpoint).text == "TASK_COMPLETE"
    assert len(endpoint.requests) == 3


@pytest.mark.parametrize(("asked", "waited"), [("600", 600.0), ("86400", openai.LONGEST_WAIT_S)])
def test_it_is_sent_again_no_sooner_than_the_endpoint_asks(endpoint, monkeypatch, asked, waited):
    waits, sleep = [], asyncio.sleep

    def noted(seconds: float) -> Awaitable[None]:
        waits.append(seconds)
        return sleep(0)

    monkeypatch.setattr(openai.asyncio, "sleep", noted)
    endpoint.faults, endpoint.retry_after = [429], asked
    assert chat(endpoint).text == "TASK_COMPLETE"
    assert max(waits) == waited


def test_but_not_for_ever(endpoint):
    endpoint.faults = [429] * 100
    with pytest.raises(EngineError, match="429"):
        chat(endpoint)
    assert len(endpoint.requests) == openai.MAX_TRIES


@pytest.mark.parametrize(
    "fault", [LOST, SILENT, 502, 504, "<html>", {"choices": []}, completion("x", "tool_calls"), 400]
)
def test_one_that_may_have_been_taken_is_lost_and_never_sent_again(endpoint, fault):
    endpoint.faults = [fault]
    with pytest.raises(EngineError):
        chat(endpoint)
    assert len(endpoint.requests) == 1


def test_newer_models_are_asked_by_their_name_of_the_cap(endpoint):
    endpoint.faults = [(400, "use 'max_completion_tokens' instead")]
    assert chat(endpoint).text == "TASK_COMPLETE"
    assert [("max_tokens" in one, "max_completion_tokens" in one) for one in endpoint.requests] == [
        (True, False),
        (False, True),
    ]


def test_giving_up_a_request_that_is_turned_away_blames_the_endpoint(endpoint, monkeypatch):
    monkeypatch.setattr(openai, "FIRST_WAIT_S", 60.0)

    async def give_up(faults: list[Any]) -> None:
        endpoint.faults = faults
        client = OpenAiClient(endpoint.url, "some-model", 5.0, None)
        try:
            async with asyncio.timeout(0.5):
                await _ask(client)
        except TimeoutError:
            await client.abort("r")
        finally:
            await client.close()

    with pytest.raises(EngineError, match="turned the request away"):
        asyncio.run(give_up([503]))
    asyncio.run(give_up([SILENT]))


# --- before an evaluation ------------------------------------------------------------------------


def test_what_is_served_is_found_out(endpoint):
    assert served(config(endpoint)) == Served("some-model", None)
    assert [one["model"] for one in endpoint.requests] == ["some-model"]


def test_an_endpoint_without_a_list_needs_the_models_name(endpoint):
    endpoint.models = 404
    assert served(config(endpoint, "engine.model=other")) == Served("other", None)
    with pytest.raises(UserError, match=r"write engine\.model=NAME"):
        served(config(endpoint))


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_is_refused_is_told_without_the_key(endpoint, status, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for endpoint.models, endpoint.faults in (
        ((status, f"bad key {KEY}"), []),
        ({"data": [{"id": "m"}]}, [(status, f"bad key {KEY}")]),
    ):
        with pytest.raises(UserError, match="GLM52_ENDPOINT_KEY") as caught:
            served(config(endpoint))
        assert KEY not in str(caught.value) and "bad key (key)" in str(caught.value)


def test_the_projects_own_variable_comes_first(endpoint, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "other")
    monkeypatch.setenv("GLM52_ENDPOINT_KEY", KEY)
    served(config(endpoint))
    assert endpoint.keys == [f"Bearer {KEY}"]


def test_the_key_of_openai_goes_to_no_sglang_server(endpoint, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert client_of(config(endpoint, "engine.api=sglang"))._key is None


@pytest.mark.parametrize(
    ("models", "faults", "overrides", "said"),
    [
        ({"data": [{"id": "a"}, {"id": "b"}]}, [], [], r"serves 2 models \(a, b\)"),
        ({"data": [{"id": "a"}]}, [], ["engine.model=b"], "serves a; write one of these"),
        ({"data": []}, [], [], "serves 0 models"),
        ("<html>", [], [], "lists no models"),
        (500, [], [], "lists no models"),
        ({"data": [{"id": "a", "max_model_len": 100}]}, [], [], "holds 100 tokens; lower"),
        ({"data": [{"id": "a"}]}, [404], [], "knows no /v1/chat/completions or not the model"),
        ({"data": [{"id": "a"}]}, ["<html>"], [], "does not answer as an OpenAI-compatible"),
        ({"data": [{"id": "a"}]}, [400], [], "does not answer as an OpenAI-compatible"),
        ({"data": [{"id": "a"}]}, [SILENT], [], "does not answer .* start the server there"),
        ({"data": [{"id": "a"}]}, [], ["engine.api=sglang"], "does not answer as SGLang does"),
    ],
)
def test_what_stands_in_the_way_is_one_sentence(endpoint, models, faults, overrides, said):
    endpoint.models, endpoint.faults = models, faults
    with pytest.raises(UserError, match=said) as caught:
        served(config(endpoint, *overrides))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("api", ["openai", "sglang"])
def test_nobody_there(api):
    with standin_endpoint() as gone:
        pass
    with pytest.raises(UserError, match="start the server there"):
        served(config(gone, f"engine.api={api}"))


@pytest.mark.parametrize("api", ["openai", "sglang"])
def test_a_key_of_two_lines_is_told_and_not_quoted(endpoint, monkeypatch, api):
    monkeypatch.setenv("GLM52_ENDPOINT_KEY", "sk-SECRET1\nSECRET2")
    with pytest.raises(UserError, match="holds a line break") as caught:
        served(config(endpoint, f"engine.api={api}"))
    assert "SECRET" not in str(caught.value)
