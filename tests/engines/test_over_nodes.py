"""One engine in two parts, tensor parallel, as it spans two nodes: both are this machine."""

import time
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from glm52_tbench2.config.schema import PauseMode, WeightTransport

from .conftest import VOCAB, Engine, Senders, log_probs, random_model

PROMPT = [(7 * i + 11) % (VOCAB - 2) + 2 for i in range(60)]
CLOSE = 1e-4


def test_it_generates_what_a_single_server_does(engine: Engine, engine_over_nodes: Engine) -> None:
    alone, over_nodes = (e.generate(PROMPT, seed=3) for e in (engine, engine_over_nodes))
    assert over_nodes.output_ids == alone.output_ids
    assert over_nodes.logprobs == pytest.approx(alone.logprobs, abs=CLOSE)
    expected = log_probs(engine.model, PROMPT, over_nodes.output_ids, 0.8)
    assert over_nodes.logprobs == pytest.approx(expected, abs=CLOSE)


@pytest.mark.parametrize("mode", PauseMode)
@pytest.mark.parametrize("transport", [WeightTransport.disk, WeightTransport.distributed])
def test_new_weights_reach_every_part(
    engine_over_nodes: Engine, tmp_path: Path, transport: WeightTransport, mode: PauseMode
) -> None:
    """Each part holds a half of most matrices, so one that kept its own would show."""
    engine, model = engine_over_nodes, random_model(1)
    model.save_pretrained(tmp_path / "model")
    sender = Senders(engine.config, tmp_path)(transport, mode)
    try:
        new = load_file(tmp_path / "model" / "model.safetensors")
        sender.push([engine.url], iter(new.items()), 1)
        out = engine.generate(PROMPT)
        assert set(out.versions) == {1}
        expected = log_probs(model, PROMPT, out.output_ids, 0.8)
        assert out.logprobs == pytest.approx(expected, abs=CLOSE)
    finally:
        old = load_file(engine.model_dir / "model.safetensors")
        sender.push([engine.url], iter(old.items()), 0)


def test_every_part_works_and_listens_on_the_loopback_alone(engine_over_nodes: Engine) -> None:
    for server in map(psutil.Process, engine_over_nodes.pids):
        listening = [
            connection.laddr.ip
            for process in [server, *server.children(recursive=True)]
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        ]
        assert set(listening) == {"127.0.0.1"}


def test_idle_parts_leave_the_cores_alone(engine_over_nodes: Engine) -> None:
    def used() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in engine_over_nodes.tree())

    before = used()
    time.sleep(3)
    assert used() - before < 1.0
