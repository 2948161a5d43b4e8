"""The driver as the supervisor starts it: endpoints by signal, and how it ends."""

import asyncio
import sys

import pytest

from glm52_tbench2.config.compose import compose, save_run_config
from glm52_tbench2.config.identity import Identity, Made, save_identity
from glm52_tbench2.config.schema import Mode
from glm52_tbench2.config.signals import STORE_VARIABLE, Signals
from glm52_tbench2.rollout import driver as module
from glm52_tbench2.rollout.collect import RolloutError
from glm52_tbench2.rollout.driver import Endpoints


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


def test_a_sample_sticks_to_its_engine_and_finds_it_again_where_it_comes_back(config, signals):
    endpoints = Endpoints(config, signals)
    signals.publish("engine/0", "http://127.0.0.1:1")
    signals.publish("engine/1", "http://127.0.0.1:2")

    async def visit() -> None:
        first = await endpoints.engine(0)
        assert await endpoints.engine(2) is first
        assert await endpoints.engine(1) is not first
        signals.withdraw("engine/0")
        waiting = asyncio.create_task(endpoints.engine(0))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        signals.publish("engine/0", "http://127.0.0.1:3")
        assert await waiting is not first

    asyncio.run(visit())


def test_an_engine_that_stays_away_ends_the_driver_in_a_sentence(config, signals):
    signals.withdraw("engine/0")
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


def test_the_asynchronous_mode_is_refused(monkeypatch, run_dir, config, capsys):
    config.rollout.mode = Mode.fully_async
    try:
        save_run_config(config, run_dir)
    finally:
        config.rollout.mode = Mode.sync
    assert main(monkeypatch, run_dir) == 2
    assert "rollout.mode=sync" in capsys.readouterr().err


def test_a_full_disk_is_told_from_a_fault(monkeypatch, run_dir, capsys):
    async def full(run_dir):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "drive", full)
    assert main(monkeypatch, run_dir) == 1
    assert "is full" in capsys.readouterr().err
