"""The trainer's processes: how they find each other, their groups, threads and random states."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.fabric import fabric_address
from glm52_tbench2.config.schema import Device, ParallelConfig, RunConfig

# Ranks wait for each other only inside a step, but a step at full size may recompute for long.
_TIMEOUT = timedelta(hours=2)


def connect(run: RunConfig, store: dist.Store, rank: int, world_size: int) -> None:
    """Joins the process group, makes Megatron's groups, sets threads, device and seeds.

    Args:
        store: where the ranks of this start meet, over a connection of their own; nobody else's
            keys are in it.

    Raises UserError when the number of ranks is not the layout's, Transformer Engine is missing
    where the trainer needs it, or no interface has an address on the fabric.
    """
    parallel = run.parallel
    if parallel.device is Device.cuda and find_spec("transformer_engine") is None:
        raise UserError(
            "parallel.device is cuda, for which the trainer needs Transformer Engine, and Python "
            "finds none here; install transformer-engine[pytorch], or write parallel.device=cpu."
        )
    if world_size != parallel.nodes * parallel.gpus_per_node:
        raise UserError(
            f"The trainer was started with {world_size} ranks, but parallel.nodes x "
            f"parallel.gpus_per_node is {parallel.nodes * parallel.gpus_per_node}."
        )
    if run.cluster.threads_per_trainer:
        torch.set_num_threads(run.cluster.threads_per_trainer)
    # Collectives open sockets on this interface only: never on one that faces elsewhere.
    _, interface = fabric_address(run.cluster.fabric)
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = interface
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    # NCCL makes a communicator at its first use, and a rank waits there for the first of them as
    # long as the store does, whatever the group's timeout is.
    store.set_timeout(_TIMEOUT)
    dist.init_process_group(
        "nccl" if torch.cuda.is_available() else "gloo",
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=_TIMEOUT,
    )
    make_groups(parallel)
    seed(run.seed, 0)


def make_groups(parallel: ParallelConfig, **options: Any) -> None:
    """Makes Megatron's groups of a layout; `options` are Megatron's own."""
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=parallel.tensor,
        pipeline_model_parallel_size=parallel.pipeline,
        context_parallel_size=parallel.context,
        expert_model_parallel_size=parallel.expert,
        expert_tensor_parallel_size=parallel.expert_tensor,
        distributed_timeout_minutes=int(_TIMEOUT.total_seconds()) // 60,
        **options,
    )


def seed(run_seed: int, step: int) -> None:
    """Seeds every generator for one step: a resumed run draws what the uninterrupted one does."""
    torch.manual_seed(run_seed + step)
    model_parallel_cuda_manual_seed(run_seed + step)


def disconnect() -> None:
    """Leaves the groups."""
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


def on_one_rank(run: RunConfig) -> RunConfig:
    """The run on one rank of a CPU, its optimizer's state in memory."""
    alone = replace(
        run.parallel,
        nodes=1,
        gpus_per_node=1,
        tensor=1,
        context=1,
        pipeline=1,
        pipeline_layers=[],
        expert=1,
        expert_tensor=1,
        sequence_parallel=False,
        device=Device.cpu,
    )
    return replace(run, parallel=alone, optim=replace(run.optim, state_on_disk=False))


@contextmanager
def one_rank() -> Iterator[None]:
    """In the groups of a trainer of one rank: those there are, or new ones."""
    if dist.is_initialized():
        yield
        return
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        parallel_state.initialize_model_parallel()
        seed(0, 0)
        yield
    finally:
        disconnect()
