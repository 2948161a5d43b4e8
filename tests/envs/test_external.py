"""A server that somebody else has started: what is asked of it before a run trusts it."""

import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.schema import SandboxConfig, SandboxProvider
from glm52_tbench2.envs import providers
from glm52_tbench2.envs.core import Environment
from glm52_tbench2.envs.models import Tbench2Action, Tbench2Observation, Tbench2State

from .conftest import CONFIG, Server, serving


def external(url: str) -> SandboxConfig:
    return replace(CONFIG, provider=SandboxProvider.external, url=url)


def said(url: str, task: str = "plain") -> str:
    """The one sentence with which a server is refused."""
    with pytest.raises(UserError) as refused:
        providers.check(external(url), task)
    assert "\n" not in str(refused.value)
    return str(refused.value)


class Echo(Environment[Tbench2Action, Tbench2Observation, Tbench2State]):
    """An OpenEnv server of another environment."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **kwargs) -> Tbench2Observation:
        return Tbench2Observation(output="hello")

    def step(self, action, timeout_s=None, **kwargs) -> Tbench2Observation:
        return Tbench2Observation(output=f"you said {action.command}")

    @property
    def state(self) -> Tbench2State:
        return Tbench2State()


@pytest.fixture(scope="module")
def other() -> Iterator[str]:
    """URL of a server of :class:`Echo`."""
    with serving(Echo) as url:
        yield url


def test_a_server_of_the_contract_passes_and_keeps_no_place(server: Server) -> None:
    for _ in range(17):  # one more than it has places
        providers.check(external(server.url), "plain")


def test_a_task_it_lacks_is_named(server: Server) -> None:
    assert "no task plane" in said(server.url, "plane").lower()


def test_another_environment_is_refused(other: str) -> None:
    assert "does not speak the contract" in said(other)


def test_a_web_server_that_is_no_environment_is_refused() -> None:
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), http.server.BaseHTTPRequestHandler
    ) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        assert "no environment server answers" in said(f"http://127.0.0.1:{web.server_port}")
        web.shutdown()
        thread.join()


def test_no_server_is_told_with_its_address() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    assert url in said(url)
