"""What does not fit, each as one sentence with its mend. Torch is not needed to know."""

import math
from dataclasses import replace

from ...config import checks
from ...config.schema import Device, Recompute, RunConfig
from . import parameters
from .engines import EngineMemory, engine_memory, token_limit
from .memory import GB, RankMemory, disk_of_node, host_memory, host_of_node, rank_memory
from .parameters import StageParameters


def memory_problems(config: RunConfig) -> list[str]:
    """What of a run does not fit into the memory and onto the disks of its nodes."""
    found = []
    if config.trains:
        ranks = trainer_ranks(config, parameters.stages(config))
        found += [*_gpu(config, ranks), *_node(config, ranks)]
    if config.engine.url is None:
        found += _engine(config, engine_memory(config))
    return found


def trainer_ranks(config: RunConfig, stages: list[StageParameters]) -> list[RankMemory]:
    """A rank of each pipeline stage."""
    sizes = checks.stage_sizes(config)
    return [
        rank_memory(config, stage, layers, held)
        for stage, (layers, held) in enumerate(zip(sizes, stages, strict=True))
    ]


def heaviest(ranks: list[RankMemory]) -> RankMemory:
    """The rank whose memory is fullest."""
    return max(ranks, key=lambda rank: rank.bytes)


def _gpu(config: RunConfig, ranks: list[RankMemory]) -> list[str]:
    known = config.cluster.hardware.gpu_memory_gb
    fullest = heaviest(ranks)
    if config.parallel.device is not Device.cuda or known is None or fullest.bytes <= known * GB:
        return []
    held = ", ".join(f"{part.name} {part.bytes / GB:,.0f}" for part in fullest.parts)
    needed = f"{fullest.bytes / GB:,.0f} of {known:g} GB"
    return [
        f"A rank of pipeline stage {fullest.stage + 1} needs {needed} "
        f"(cluster.hardware.gpu_memory_gb): {held}; {_gpu_mend(config, fullest)}."
    ]


def _gpu_mend(config: RunConfig, fullest: RankMemory) -> str:
    """The least change that makes the ranks fit."""
    parallel = config.parallel
    in_full = replace(parallel, recompute=Recompute.full)
    # No micro-batch need hold more than one session of the whole budget.
    alone = config.rollout.max_session_tokens // parallel.context
    shorter = replace(parallel, max_tokens_per_rank=min(alone, parallel.max_tokens_per_rank))
    on_disk = replace(config.optim, state_on_disk=True)
    for words, changed in (
        ("parallel.recompute=full", replace(config, parallel=in_full)),
        (f"parallel.max_tokens_per_rank={alone}", replace(config, parallel=shorter)),
        ("optim.state_on_disk=true", replace(config, optim=on_disk)),
        (
            "optim.state_on_disk=true parallel.recompute=full",
            replace(config, optim=on_disk, parallel=in_full),
        ),
    ):
        if _fits(changed):
            return f"write {words}"
    activations = next(part for part in fullest.parts if part.name == "activations")
    if activations.bytes > fullest.bytes / 2:
        for factor in (2, 4, 8, 16):
            wider = replace(
                parallel, context=parallel.context * factor, nodes=parallel.nodes * factor
            )
            if _fits(replace(config, parallel=wider)):
                return (
                    f"write parallel.context={wider.context} parallel.nodes={wider.nodes}, so that "
                    "a session is split further, or lower rollout.max_session_tokens"
                )
        return "lower rollout.max_session_tokens"
    if config.model.num_experts % (2 * parallel.expert) == 0:
        return "raise parallel.expert, parallel.pipeline or parallel.nodes"
    return "raise parallel.pipeline, parallel.tensor or parallel.nodes"


def _fits(config: RunConfig) -> bool:
    ranks = trainer_ranks(config, parameters.stages(config))
    return heaviest(ranks).bytes <= (config.cluster.hardware.gpu_memory_gb or math.inf) * GB


def _node(config: RunConfig, ranks: list[RankMemory]) -> list[str]:
    found = []
    room, state = config.cluster.hardware.disk_gb, disk_of_node(config, ranks)
    if room is not None and state > room * GB:
        found.append(
            f"The optimizer state takes {state / GB:,.0f} GB on the disks of a trainer's node, but "
            f"cluster.hardware.disk_gb is {room:g}; raise parallel.nodes with parallel.pipeline or "
            "parallel.expert, so that a rank holds less."
        )
    memory, needed = host_memory(config), host_of_node(config, ranks)
    if memory is not None and needed > memory:
        mend = (
            "lower parallel.max_tokens_per_rank, write parallel.recompute=full, or choose a "
            "smaller model"
            if config.parallel.device is Device.cpu
            else "lower optim.state_bucket_bytes"
            if config.optim.state_on_disk
            else "write optim.state_on_disk=true"
        )
        found.append(
            f"The trainer's ranks take {needed / GB:,.1f} GB of a node's own memory, a "
            f"checkpoint's copy included, and it has {memory / GB:,.1f} GB; {mend}."
        )
    return found


def _engine(config: RunConfig, engine: EngineMemory) -> list[str]:
    session, tokens = config.rollout.max_session_tokens, engine.kv_tokens
    arguments, limit = "engine.server_args", token_limit(config)
    if tokens is None or tokens >= session:
        return []
    if limit is not None and limit < session:
        return [
            f"{arguments}.max-total-tokens ({limit}) is less than one session, "
            f"rollout.max_session_tokens ({session}); raise the first."
        ]
    hardware = config.cluster.hardware
    needed = engine.weights / GB + hardware.gpu_reserved_gb + session * engine.token_bytes / GB
    needed /= hardware.gpu_memory_gb or math.inf
    mend = (
        f"write {arguments}.mem-fraction-static={min(0.95, needed + 0.05):.2f}"
        if needed < 0.9
        else "raise engine.gpus_per_engine, so that each holds fewer weights"
    )
    return [
        f"An engine's GPU has room for {tokens:,} tokens of KV cache beside "
        f"{engine.weights / GB:,.0f} GB of weights, less than one session, "
        f"rollout.max_session_tokens ({session:,}), so sessions would be cut; {mend}."
    ]
