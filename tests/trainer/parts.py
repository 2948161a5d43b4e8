"""Small real parts for the trainer's tests: a run, random weights, step files, ranks."""

import multiprocessing
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glm52_tbench2.config.compose import compose, save_run_config
from glm52_tbench2.config.identity import Identity, Made, save_identity
from glm52_tbench2.config.schema import RunConfig
from glm52_tbench2.rollout.batch import Sample, Turn, batch_path, write_batch

IDENTITY = "0123456789abcdef"
SMALL = [
    "model.num_layers=3",
    "model.num_dense_layers=1",
    "model.hidden_size=48",
    "model.dense_ffn_size=64",
    "model.num_heads=4",
    "model.q_lora_rank=24",
    "model.kv_lora_rank=16",
    "model.qk_nope_head_dim=12",
    "model.qk_rope_head_dim=8",
    "model.v_head_dim=16",
    "model.num_experts=8",
    "model.experts_per_token=2",
    "model.num_shared_experts=1",
    "model.expert_ffn_size=32",
    "model.router_scaling=1.8",
    "model.vocab_size=256",
    "model.norm_eps=1e-5",
    "model.rope_base=10000.0",
    "model.max_position=512",
    "rollout.max_session_tokens=256",
    "rollout.max_turn_tokens=64",
    "parallel.max_tokens_per_rank=256",
    "optim.lr=1e-2",
    # Large against the gradients: an update is then a smooth function of them, and not their sign.
    "optim.eps=1e-2",
    "cluster.threads_per_trainer=1",
]


# Layers 1 and 3 choose keys, so layer 2 uses those of layer 1. Heads enough that no two scores are
# alike, as all are that no head gives a point.
SPARSE = [
    "model.family=glm_moe_dsa",
    "model.index_heads=16",
    "model.index_head_dim=12",
    "model.index_topk=8",
    "model.index_layers=[1,3]",
]


def small_run(*overrides: str) -> RunConfig:
    """The smoke run, smaller still. Overrides as on the command line."""
    return compose(["experiment=smoke", *SMALL, *overrides])


def save_start_weights(run: RunConfig, folder: Path) -> None:
    """A random transformers model of the run's shape, also what it starts with as 0 or 1."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from glm52_tbench2.trainer.hf import hf_config

    torch.manual_seed(0)
    config = AutoConfig.for_model(**hf_config(run.model), initializer_range=0.15)
    model = AutoModelForCausalLM.from_config(config)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.normal_(std=0.1)
    for name, weight in model.named_parameters():
        if "indexer.k_norm" in name:
            torch.nn.init.normal_(weight)
    model.save_pretrained(folder)


def make_batch(run: RunConfig, step: int, num_samples: int = 8, seed: int = 0) -> list[Sample]:
    """Episodes of one to three turns of random tokens; one of them ends in an observation."""
    rng = np.random.default_rng([seed, step])
    samples = []
    for number in range(num_samples):
        prompt = int(rng.integers(5, 20))
        spans, length = [], prompt
        for _ in range(int(rng.integers(1, 4))):
            start, end = length, length + int(rng.integers(3, 30))
            spans.append((start, end))
            length = end + int(rng.integers(2, 12))
        if number:
            length = spans[-1][1]
        mask = np.zeros(length, dtype=bool)
        for start, end in spans:
            mask[start:end] = True
        samples.append(
            Sample(
                sample_id=f"{step:06d}-{number // 4}-{number % 4}",
                step=step,
                group=number // 4,
                index=number % 4,
                task_id="files-1",
                end_reason="length" if number == 1 else "task_complete",
                reward=float(number % 2),
                truncated=number == 1,
                tokens=rng.integers(0, run.model.vocab_size, length).astype(np.int32),
                loss_mask=mask,
                rollout_logprobs=np.where(mask, -rng.uniform(2, 8, length), 0).astype(np.float32),
                weight_versions=np.where(mask, step - 1, -1).astype(np.int32),
                turns=[Turn(start, end, "stop", 0.1) for start, end in spans],
                prompt_tokens=prompt,
                advantage=float(rng.normal()),
            )
        )
    return samples


def make_run_dir(run: RunConfig, folder: Path, batches: int) -> Path:
    """A run folder with the step files 1 to `batches`."""
    folder.mkdir(parents=True)
    save_run_config(run, folder)
    save_identity(
        Identity({}, "", {}, {}, "", {}, made=Made("", "", {}, {}, {}, {}), hash=IDENTITY),
        folder,
        [],
    )
    for step in range(1, batches + 1):
        path = batch_path(folder, "rollouts", step)
        write_batch(path, make_batch(run, step), IDENTITY, step)
    return folder


def assert_same_metrics(
    found: Sequence[Mapping[str, float]], expected: Sequence[Mapping[str, float]]
) -> None:
    """With the state on disk and in memory norms of updates are summed in another order; everything
    else but times is the same to the bit."""
    summed = {"trainer/update_norm", "trainer/update_relative"}
    for mine, theirs in zip(found, expected, strict=True):
        names = {name for name in theirs if not name.startswith("time/")}
        assert names == {name for name in mine if not name.startswith("time/")}
        for name in names:
            near = pytest.approx(theirs[name], rel=1e-5) if name in summed else theirs[name]
            assert mine[name] == near, name


def layout(run: RunConfig, ranks: int, **parallel: Any) -> RunConfig:
    """The run on `ranks` ranks, laid out as `parallel` says."""
    return replace(run, parallel=replace(run.parallel, gpus_per_node=ranks, **parallel))


def on_disk(run: RunConfig, folder: Path) -> RunConfig:
    """The run with its optimizer state in `folder`, in many buckets."""
    optim = replace(run.optim, state_on_disk=True, state_dir=str(folder), state_bucket_bytes=60_000)
    return replace(run, optim=optim)


class Ranks:
    """Processes that play the ranks of a trainer.

    Each call has its own, forks of one process that has imported Megatron, which takes long: what
    an earlier call left, as threads of its process groups, would only take time from the others.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._calls = folder, 0
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([f"{__package__}.serve"])

    def __call__(self, run: RunConfig, job: str, *args: Any) -> list[Any]:
        """jobs.JOB(run, *args) on every rank of the run's layout; what each returned."""
        size = run.parallel.nodes * run.parallel.gpus_per_node
        self._calls += 1
        store = self._folder / f"store-{self._calls}"
        pipes, processes = [], []
        try:
            for rank in range(size):
                ours, theirs = self._context.Pipe()
                process = self._context.Process(target=_serve, args=(theirs, rank))
                process.start()
                theirs.close()
                pipes.append(ours)
                processes.append(process)
                ours.send((run, size, str(store), job, args))
            answers: dict[Any, Any] = {}
            while len(answers) < size:
                for pipe in wait([one for one in pipes if one not in answers]):
                    error, answers[pipe] = pipe.recv()
                    if error:  # the others wait for this rank, and would for ever
                        raise AssertionError(error)
            return [answers[pipe] for pipe in pipes]
        finally:
            for process in processes:
                process.kill()
                process.join()


def _serve(pipe: Connection, rank: int) -> None:
    from .serve import jobs

    run, size, store, job, args = pipe.recv()
    try:
        with _connected(run, rank, size, store):
            found = getattr(jobs, job)(run, *args)
        pipe.send(("", found))
    except BaseException:
        pipe.send((traceback.format_exc(), None))


@contextmanager
def _connected(run: RunConfig, rank: int, size: int, store: str) -> Iterator[None]:
    import torch.distributed as dist

    from glm52_tbench2.trainer import ranks

    ranks.connect(run, dist.FileStore(store, size), rank, size)
    try:
        yield
    finally:
        ranks.disconnect()
