"""The driver as the supervisor starts it: endpoints by signal, and how it ends."""

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from glm52_tbench2.config.compose import compose, save_run_config
from glm52_tbench2.config.identity import Identity, Made, save_identity
from glm52_tbench2.config.signals import STORE_VARIABLE, Signals
from glm52_tbench2.rollout import driver as module
from glm52_tbench2.rollout.endpoints import Endpoints
from glm52_tbench2.rollout.player import RolloutError


@pytest.fixture(scope="module")
def config():
    return compose(["experiment=smoke", "engine.num_engines=2", "cluster.deadlines.engine=1"])


@pytest.fixture(scope="module")
def signals():
    signals, _ = Signals.serve("127.0.0.1")
    signals.open()
    return signals


@pytest.fixture
def run_dir(tmp_path, config):
    save_run_config(config, tmp_path)
    save_identity(
        Identity({}, "", {}, {}, "", {}, made=Made("", "", {}, {}, {}, {}), hash="id"), tmp_path, []
    )
    return tmp_path


def main(monkeypatch, run_dir) -> int:
    monkeypatch.setattr(sys, "argv", ["driver", "--run", str(run_dir)])
    return module.main()


@contextmanager
def engine(version: str) -> Iterator[str]:
    """URL of a server that says which weights it serves."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"weight_version": version}).encode())

        def log_message(self, *told: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_sample_sticks_to_its_engine_and_goes_to_the_next_while_that_one_is_away(config, signals):
    endpoints = Endpoints(config, signals)

    async def visit() -> None:
        signals.publish("engine/0", one)
        signals.publish("engine/1", two)
        first, second = await endpoints.engine(0), await endpoints.engine(1)
        assert await endpoints.engine(2) is first is not second
        signals.withdraw("engine/0")
        assert await endpoints.engine(0) is second
        signals.publish("engine/0", one)
        assert (await endpoints.engine(0)).url == one
        await endpoints.close()

    with engine("0") as one, engine("0") as two:
        asyncio.run(visit())


@pytest.mark.parametrize("served", ["4", "4+partial"])
def test_an_engine_is_used_once_it_serves_the_weights_of_the_others(config, signals, served):
    endpoints = Endpoints(config, signals)

    async def visit() -> None:
        signals.publish("weights/version", "5")
        signals.publish("engine/0", behind)
        signals.publish("engine/1", ahead)
        assert (await endpoints.engine(0)).url == ahead
        signals.withdraw("engine/1")
        with pytest.raises(RolloutError, match="not ready"):
            await endpoints.engine(0)
        signals.withdraw("weights/version")
        await endpoints.close()

    with engine(served) as behind, engine("5") as ahead:
        asyncio.run(visit())


def test_an_engine_that_failed_is_asked_for_its_weights_and_kept(config, signals):
    """Other requests may run on its connections: they must not end with the one that failed."""
    endpoints = Endpoints(config, signals)

    async def visit() -> None:
        signals.withdraw("engine/1")
        signals.publish("engine/0", url)
        client = await endpoints.engine(0)
        client.failed = True
        assert await endpoints.engine(0) is client
        assert not client.failed
        signals.publish("weights/version", "1")
        client.failed = True
        with pytest.raises(RolloutError, match="not ready"):
            await endpoints.engine(0)
        signals.withdraw("weights/version")
        await endpoints.close()

    with engine("0") as url:
        asyncio.run(visit())


def test_an_engine_that_stays_away_ends_the_driver_in_a_sentence(config, signals):
    signals.withdraw("engine/0")
    signals.withdraw("engine/1")
    with pytest.raises(RolloutError, match="engine/0 was not ready within 1 s"):
        asyncio.run(Endpoints(config, signals).engine(0))


def test_weights_are_waited_for_by_version(config, signals):
    endpoints = Endpoints(config, signals)

    async def wait() -> None:
        assert await endpoints.weights() is None
        waiting = asyncio.create_task(endpoints.weights_at(3))
        signals.publish("weights/version", "2")
        await asyncio.sleep(0.15)
        assert not waiting.done()
        signals.publish("weights/version", "3")
        await asyncio.wait_for(waiting, 10)

    asyncio.run(wait())


def test_outside_a_supervisor_it_says_so(monkeypatch, run_dir, capsys, tokenizer):
    monkeypatch.delenv(STORE_VARIABLE, raising=False)
    assert main(monkeypatch, run_dir) == 1
    assert STORE_VARIABLE in capsys.readouterr().err


def test_a_folder_that_is_no_run_is_bad_input(monkeypatch, tmp_path, capsys):
    assert main(monkeypatch, tmp_path) == 2
    assert "not a run folder" in capsys.readouterr().err


def test_a_full_disk_is_told_from_a_fault(monkeypatch, run_dir, capsys):
    async def full(run_dir):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "drive", full)
    assert main(monkeypatch, run_dir) == 1
    assert "is full" in capsys.readouterr().err
