"""Which roles a run has, on which node each runs, and how it is started."""

import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from ..config.schema import Device, RunConfig, SandboxProvider, WandbMode
from ..engines.launch import scratch_dir
from .roles import Policy, RoleSpec


def place(config: RunConfig, run_dir: Path) -> list[RoleSpec]:
    """Every role of a run, servers first, each with the node that starts it.

    Trainer ranks fill the first parallel.nodes nodes, engines the engine.nodes nodes after them,
    one that spans nodes with a part on each; driver, environment server and tracker are on
    cluster.driver_node. Only where nodes run out, as on one machine, do engines share those of the
    trainer, and parts of an engine a node. Where sandboxes are external, the driver talks to their
    server, and there is none of ours. An evaluation by itself has no trainer, and what engine.url
    serves is no role.
    """
    return [
        *_env(config, run_dir),
        *(_engines(config, run_dir) if config.engine.url is None else ()),
        *(_trainers(config, run_dir) if config.trains else ()),
        _driver(config, run_dir),
        *_tracker(config, run_dir),
    ]


def given_port(config: RunConfig, engine: int) -> int | None:
    """The port engine.server_args.port gives an engine, one more for each; None: a free one."""
    first = config.engine.server_args.get("port")
    return None if first is None else int(first) + engine


def _module(name: str, run_dir: Path, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"glm52_tbench2.{name}", "--run", str(run_dir), *arguments)


_SERVES = ("--host", "{host}", "--port", "{port}")
# Collectives listen on the fabric alone.
_SOCKETS = {"GLOO_SOCKET_IFNAME": "{interface}", "NCCL_SOCKET_IFNAME": "{interface}"}


def _env(config: RunConfig, run_dir: Path) -> Iterator[RoleSpec]:
    if config.sandbox.provider is not SandboxProvider.external:
        yield RoleSpec(
            role="env",
            index=0,
            command=_module("envs.server", run_dir, *_SERVES),
            policy=Policy.service,
            node=config.cluster.driver_node,
            env={"OMP_NUM_THREADS": "1"},
            deadline_s=config.cluster.deadlines.env,
            health="/health",
        )


def _engines(config: RunConfig, run_dir: Path) -> Iterator[RoleSpec]:
    parts = config.engine.nodes_per_engine
    for index, part in product(range(config.engine.num_engines), range(parts)):
        node, gpus = _engine_place(config, index, part)
        command = _module("engines.launch", run_dir, "--index", str(index), *_SERVES)
        if parts > 1:
            command += ("--part", str(part), "--generation", "{generation}")
            command += ("--meet", "{meet}") if part == 0 else ()
        yield RoleSpec(
            role="engine",
            index=index,
            part=part,
            parts=parts,
            node=node,
            command=command,
            policy=Policy.service,
            env={
                **_threads(config.cluster.threads_per_engine),
                **_SOCKETS,
                "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)),
            },
            deadline_s=config.cluster.deadlines.engine,
            health="/health",
            port=None if part else given_port(config, index),
            scratch=scratch_dir(run_dir, index, part),
            numbered=True,
        )


def _engine_place(config: RunConfig, index: int, part: int) -> tuple[int, range]:
    """(node, its GPUs) of a part of an engine."""
    engine, trainer = config.engine, config.parallel
    a_node = max(1, engine.num_engines // engine.nodes)
    after = index // a_node * engine.nodes_per_engine + part
    node = (trainer.nodes + after) % config.cluster.nodes
    if engine.device is not Device.cuda:
        return node, range(0)
    # On a node that trains too, the ranks come first and the engines take the GPUs after them.
    shared = config.trains and node < trainer.nodes and trainer.device is Device.cuda
    taken = trainer.gpus_per_node if shared else 0
    gpus = engine.gpus_per_engine // engine.nodes_per_engine
    first = taken + index % a_node * gpus
    return node, range(first, first + gpus)


def _trainers(config: RunConfig, run_dir: Path) -> Iterator[RoleSpec]:
    ranks = config.parallel.nodes * config.parallel.gpus_per_node
    for rank in range(ranks):
        yield RoleSpec(
            role="trainer",
            index=rank,
            node=rank // config.parallel.gpus_per_node,
            command=_module("trainer.main", run_dir),
            policy=Policy.core,
            env={
                **_threads(config.cluster.threads_per_trainer),
                **_SOCKETS,
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_RANK": str(rank % config.parallel.gpus_per_node),
                "LOCAL_WORLD_SIZE": str(config.parallel.gpus_per_node),
                # Ranks meet in the supervisor's store, as under torchrun's agent: a store of
                # rank 0's own would listen on every interface.
                "MASTER_ADDR": "{store_host}",
                "MASTER_PORT": "{store_port}",
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                **({} if config.parallel.device is Device.cuda else {"CUDA_VISIBLE_DEVICES": ""}),
            },
            deadline_s=config.cluster.deadlines.trainer,
            ready_key="trainer/ready",
            numbered=True,
        )


def _driver(config: RunConfig, run_dir: Path) -> RoleSpec:
    return RoleSpec(
        role="driver",
        index=0,
        command=_module("rollout.driver", run_dir),
        policy=Policy.worker,
        node=config.cluster.driver_node,
        env={"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        deadline_s=config.cluster.deadlines.driver,
        ready_key="driver/ready",
    )


def _tracker(config: RunConfig, run_dir: Path) -> Iterator[RoleSpec]:
    if config.tracking.wandb is not WandbMode.disabled:
        yield RoleSpec(
            role="tracker",
            index=0,
            command=_module("analysis.track", run_dir),
            policy=Policy.helper,
            node=config.cluster.driver_node,
            env={"OMP_NUM_THREADS": "1"},
        )


def _threads(count: int) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(count)} if count else {}
