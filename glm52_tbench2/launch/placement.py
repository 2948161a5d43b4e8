"""Which roles a run has, on which node each runs, and how it is started."""

import sys
from collections.abc import Iterator
from pathlib import Path

from ..config.schema import Device, RunConfig, WandbMode
from ..engines.launch import scratch_dir
from .ports import fabric_address
from .roles import Policy, RoleSpec


def place(config: RunConfig, run_dir: Path) -> list[RoleSpec]:
    """Every role of a run on one machine, servers first.

    Raises UserError when no address of this machine lies on cluster.fabric.
    """
    _, interface = fabric_address(config.cluster.fabric)
    return [
        _env(config, run_dir),
        *_engines(config, run_dir, interface),
        *_trainers(config, run_dir, interface),
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


def _env(config: RunConfig, run_dir: Path) -> RoleSpec:
    return RoleSpec(
        role="env",
        index=0,
        command=_module("envs.server", run_dir, *_SERVES),
        policy=Policy.service,
        env={"OMP_NUM_THREADS": "1"},
        deadline_s=config.cluster.deadlines.env,
        health="/health",
    )


def _engines(config: RunConfig, run_dir: Path, interface: str) -> Iterator[RoleSpec]:
    engine = config.engine
    # On one machine the trainer's ranks come first, and the engines take the GPUs after them.
    taken = config.parallel.gpus_per_node if config.parallel.device is Device.cuda else 0
    for index in range(engine.num_engines):
        first = taken + index * engine.gpus_per_engine
        gpus = range(first, first + engine.gpus_per_engine) if engine.device is Device.cuda else ()
        yield RoleSpec(
            role="engine",
            index=index,
            command=_module("engines.launch", run_dir, "--index", str(index), *_SERVES),
            policy=Policy.service,
            env={
                **_threads(config.cluster.threads_per_engine),
                **_sockets(interface),
                "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)),
            },
            deadline_s=config.cluster.deadlines.engine,
            health="/health",
            port=given_port(config, index),
            scratch=scratch_dir(run_dir, index),
            numbered=True,
        )


def _trainers(config: RunConfig, run_dir: Path, interface: str) -> Iterator[RoleSpec]:
    ranks = config.parallel.nodes * config.parallel.gpus_per_node
    for rank in range(ranks):
        yield RoleSpec(
            role="trainer",
            index=rank,
            command=_module("trainer.main", run_dir),
            policy=Policy.core,
            env={
                **_threads(config.cluster.threads_per_trainer),
                **_sockets(interface),
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
            env={"OMP_NUM_THREADS": "1"},
        )


def _threads(count: int) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(count)} if count else {}


def _sockets(interface: str) -> dict[str, str]:
    """Collectives listen on the fabric alone."""
    return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
