"""One engine in two parts, tensor parallel, as it spans two nodes: both are this machine."""

import time

import psutil
import pytest
from safetensors.torch import load_file

from glm52_tbench2.config.schema import PauseMode
from glm52_tbench2.engines import weights

from .conftest import VOCAB, Engine, log_probs, random_model

PROMPT = [(7 * i + 11) % (VOCAB - 2) + 2 for i in range(60)]
CLOSE = 1e-4


def test_it_generates_what_a_single_server_does(engine: Engine, engine_over_nodes: Engine) -> None:
    alone, over_nodes = (e.generate(PROMPT, seed=3) for e in (engine, engine_over_nodes))
    assert over_nodes.output_ids == alone.output_ids
    assert over_nodes.logprobs == pytest.approx(alone.logprobs, abs=CLOSE)
    expected = log_probs(engine.model, PROMPT, over_nodes.output_ids, 0.8)
    assert over_nodes.logprobs == pytest.approx(expected, abs=CLOSE)


@pytest.mark.parametrize("mode", PauseMode)
def test_new_weights_reach_every_part(engine_over_nodes: Engine, mode: PauseMode) -> None:
    """Each part holds a half of most matrices, so one that kept its own would show."""
    engine, model = engine_over_nodes, random_model(1)
    saved = engine.run_dir / "model-1"
    model.save_pretrained(saved)
    tensors = load_file(saved / "model.safetensors").items()
    folder = weights.publish(engine.run_dir / "weights", tensors, engine.model_dir, 1)
    try:
        weights.push([engine.url], folder, 1, mode)
        out = engine.generate(PROMPT)
        assert set(out.versions) == {1}
        expected = log_probs(model, PROMPT, out.output_ids, 0.8)
        assert out.logprobs == pytest.approx(expected, abs=CLOSE)
    finally:
        weights.push([engine.url], engine.model_dir, 0, mode)


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
