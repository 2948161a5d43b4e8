"""One real SGLang server on a small random model, shared by every test that needs one."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import (
    Glm4MoeLiteConfig,
    Glm4MoeLiteForCausalLM,
    PreTrainedTokenizerFast,
)

from glm52_tbench2.config import save_run_config
from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.paths import ROOT
from glm52_tbench2.config.schema import PauseMode, RunConfig, WeightTransport
from glm52_tbench2.config.signals import STORE_VARIABLE, Signals
from glm52_tbench2.engines import launch
from glm52_tbench2.engines.client import EngineClient, Generation
from glm52_tbench2.engines.weights.sender import Sender
from glm52_tbench2.engines.weights.transports import make_sender
from glm52_tbench2.launch.ports import free_port

T = TypeVar("T")
VOCAB = 256
READY_S = 300.0


def random_model(seed: int) -> Glm4MoeLiteForCausalLM:
    """A model of GLM-4.7-Flash's shape with every part in it, float32, 0.3M parameters."""
    config = Glm4MoeLiteConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=160,
        moe_intermediate_size=48,
        num_hidden_layers=3,
        first_k_dense_replace=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_shared_experts=1,
        q_lora_rank=32,
        kv_lora_rank=24,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=20,
        max_position_embeddings=1024,
        initializer_range=0.1,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Glm4MoeLiteForCausalLM(config).float().eval()
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(0, 0.1)
    return model


def log_probs(
    model: Glm4MoeLiteForCausalLM, prompt: list[int], output: list[int], temperature: float
) -> list[float]:
    """Of each output token, by transformers: log-softmax(logits / temperature)."""
    tokens = torch.tensor([[*prompt, *output]])
    with torch.no_grad():
        logits = model(tokens).logits[0, len(prompt) - 1 : -1] / temperature
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(output)[:, None])[:, 0].tolist()


@dataclass
class FirstModel:
    """A folder of weights with a tokenizer, and what is in it."""

    folder: Path
    model: Glm4MoeLiteForCausalLM


@dataclass
class Engine:
    """A running server and the run it belongs to."""

    url: str
    processes: list[subprocess.Popen[bytes]]
    """One a part."""
    run_dir: Path
    model_dir: Path
    model: Glm4MoeLiteForCausalLM
    """What it serves at first, as version 0."""
    config: RunConfig

    def tree(self) -> list[psutil.Process]:
        """The server and all its processes."""
        servers = [psutil.Process(pid) for pid in self.pids]
        return servers + [child for one in servers for child in one.children(recursive=True)]

    @property
    def pids(self) -> list[int]:
        """Of its parts' first processes."""
        return [process.pid for process in self.processes]

    def use(self, work: Callable[[EngineClient], Awaitable[T]]) -> T:
        """What `work` returns with a client of this engine."""

        async def run() -> T:
            async with EngineClient(self.url, timeout_s=120) as client:
                return await work(client)

        return asyncio.run(run())

    def generate(self, prompt: list[int], **asked: Any) -> Generation:
        """One request alone."""
        return self.use(lambda client: generate(client, prompt, **asked))


class Senders:
    """Senders of a run, one of each kind: a trainer keeps one too."""

    def __init__(self, config: RunConfig, run_dir: Path) -> None:
        self._signals, _ = Signals.serve("127.0.0.1")
        self._config, self.run_dir = config, run_dir
        self._made: dict[tuple[WeightTransport, int], Sender] = {}

    def __call__(
        self,
        transport: WeightTransport,
        mode: PauseMode = PauseMode.in_place,
        bucket_bytes: int = 300_000,
    ) -> Sender:
        """Sends a model in five buckets, unless told otherwise."""
        if (transport, bucket_bytes) not in self._made:
            engine = replace(self._config.engine, transport=transport, bucket_bytes=bucket_bytes)
            made = make_sender(replace(self._config, engine=engine), self.run_dir, self._signals)
            self._made[transport, bucket_bytes] = made
        sender = self._made[transport, bucket_bytes]
        rollout = replace(self._config.rollout, pause_mode=mode)
        sender.config = replace(sender.config, rollout=rollout)
        return sender


@pytest.fixture(scope="session")
def senders(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Senders:
    """Of the run of `engine`."""
    return Senders(engine.config, tmp_path_factory.mktemp("sender"))


async def generate(client: EngineClient, prompt: list[int], **asked: Any) -> Generation:
    """One request, with defaults. The model has no end of sequence: only a stop token ends it."""
    defaults: dict[str, Any] = {
        "max_new_tokens": 24,
        "temperature": 0.8,
        "stop_token_ids": [],
        "seed": 7,
        "rid": os.urandom(8).hex(),
    }
    return await client.generate(prompt, **(defaults | asked))


@pytest.fixture(scope="session")
def first_model(tmp_path_factory: pytest.TempPathFactory) -> FirstModel:
    """What every engine starts from."""
    folder, model = tmp_path_factory.mktemp("model"), random_model(0)
    model.save_pretrained(folder)
    vocabulary = Tokenizer(models.BPE(vocab={f"<{i}>": i for i in range(VOCAB)}, merges=[]))
    PreTrainedTokenizerFast(tokenizer_object=vocabulary).save_pretrained(folder)
    return FirstModel(folder, model)


@pytest.fixture(scope="session")
def engine(first_model: FirstModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine for all tests."""
    with served(first_model, tmp_path_factory.mktemp("run")) as made:
        yield made


@pytest.fixture(scope="session")
def engine_over_nodes(
    first_model: FirstModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    """An engine that spans two nodes, both this machine."""
    signals, store = Signals.serve("127.0.0.1")
    signals.open()
    meeting, meet = Signals.serve("127.0.0.1")
    meeting.open()
    parts = (["--meet", meet], ["--part", "1"])
    run_dir = tmp_path_factory.mktemp("run")
    with served(
        first_model, run_dir, "engine.nodes=2", parts=parts, env={STORE_VARIABLE: store}
    ) as made:
        yield made


@contextlib.contextmanager
def served(
    first: FirstModel,
    run_dir: Path,
    *overrides: str,
    parts: Sequence[list[str]] = ([],),
    env: Mapping[str, str] | None = None,
) -> Iterator[Engine]:
    """An engine of a run of its own; `parts`: arguments of each of its servers.

    Kills the server with SIGKILL at the end, and fails if a process of it lives on.
    """
    config = compose(
        [
            "experiment=smoke",
            f"model.path={first.folder}",
            "cluster.threads_per_engine=1",
            "engine.server_args.max-total-tokens=16384",
            *overrides,
        ]
    )
    save_run_config(config, run_dir)
    logs = [run_dir / f"engine-{part}.log" for part in range(len(parts))]
    ports = [free_port("127.0.0.1") for _ in parts]
    command = [sys.executable, "-m", "glm52_tbench2.engines.launch", "--run", str(run_dir)]
    command += ["--index", "0", "--host", "127.0.0.1"]
    processes = [
        subprocess.Popen(
            [*command, "--port", str(port), *arguments],
            cwd=ROOT,
            stdout=log.open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )
        for port, arguments, log in zip(ports, parts, logs, strict=True)
    ]
    made = Engine(
        f"http://127.0.0.1:{ports[0]}", processes, run_dir, first.folder, first.model, config
    )
    tree = []
    try:
        until = time.monotonic() + READY_S
        while not made.use(EngineClient.health):
            said = "\n".join(log.read_text()[-3000:] for log in logs)
            assert all(p.poll() is None for p in processes), f"the server ended:\n{said}"
            assert time.monotonic() < until, f"not ready:\n{said}"
        tree = made.tree()
        yield made
    finally:
        for process in processes:
            process.kill()
            process.wait()
        _, alive = psutil.wait_procs([p for p in tree if p.pid not in made.pids], timeout=20)
        for part, process in enumerate(processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            launch.remove_scratch(run_dir, 0, part)
    assert not alive, f"alive after their server was killed: {alive}"
