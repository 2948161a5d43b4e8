"""What the ranks and engines of a layout hold: GPU, host and disk, part by part."""

from dataclasses import dataclass

import psutil

from ...config.schema import Device, RunConfig, Scheduler
from .activations import activations, element_bytes, longest
from .parameters import StageParameters
from .units import number, size

GB = 1e9
_FLOAT32 = 4
_BUCKETS = 3
"""Buckets of a state on disk that are in memory at one time: read, updated, written."""


@dataclass(frozen=True)
class Part:
    """One thing that is held."""

    name: str
    bytes: float
    what: str
    """What it consists of."""


@dataclass(frozen=True)
class RankMemory:
    """One rank of a pipeline stage."""

    stage: int
    layers: int
    parameters: StageParameters
    parts: list[Part]
    """What is in the rank's memory together when there is most."""
    state: Part
    """The optimizer's, wherever it lies."""

    @property
    def bytes(self) -> float:
        """Bytes of the parts."""
        return sum(part.bytes for part in self.parts)


def state_bytes(config: RunConfig, trained: int) -> int:
    """Of the optimizer, for so many parameters: two moments, and a master copy under bfloat16."""
    return trained * _FLOAT32 * (3 if element_bytes(config) < _FLOAT32 else 2)


def state_words(config: RunConfig) -> str:
    """What the optimizer's state of one parameter consists of."""
    if element_bytes(config) < _FLOAT32:
        return "12 bytes: a float32 master weight and two float32 moments"
    return "8 bytes: two float32 moments"


def bucket_bytes(config: RunConfig, state: float) -> float:
    """Bytes of a state on disk that are updated at one time."""
    return min(config.optim.state_bucket_bytes, state)


def rank_memory(
    config: RunConfig, stage: int, layers: int, parameters: StageParameters
) -> RankMemory:
    """Of a rank of the pipeline stage `stage`."""
    each, trained = element_bytes(config), parameters.trained
    state = Part(
        "optimizer state",
        state_bytes(config, trained),
        f"{number(trained)} x {state_words(config)}",
    )
    on_gpu, bucket = config.parallel.device is Device.cuda, bucket_bytes(config, state.bytes)
    if not config.optim.state_on_disk:
        held = state
    elif on_gpu:
        held = Part("optimizer state", bucket, "on disk; one bucket at a time")
    else:
        held = Part("optimizer state", _BUCKETS * bucket, "on disk; three buckets")
    found = activations(config, stage)
    # Adam over many tensors at once makes a root of every second moment; on a CPU it takes turns.
    update = trained * _FLOAT32 if on_gpu and not config.optim.state_on_disk else 0
    work = Part(
        "activations",
        max(found.peak, update),
        f"{longest(config):,} tokens a micro-batch: {size(found.saved)} saved, and at most "
        f"{size(max(found.layer, found.logits))} for a layer or logits"
        if found.peak >= update
        else "the optimizer's own, in its update: a float32 a parameter",
    )
    reserved = config.cluster.hardware.gpu_reserved_gb * GB if on_gpu else 0
    parts = [
        Part("weights", parameters.held * each, f"{number(parameters.held)} x {each} bytes"),
        Part("gradients", trained * _FLOAT32, f"{number(trained)} x 4 bytes"),
        held,
        work,
        *(
            [Part("reserved", reserved, "CUDA's context, communication buffers and the like")]
            if on_gpu
            else ()
        ),
    ]
    return RankMemory(stage, layers, parameters, parts, state)


def disk_of_node(config: RunConfig, ranks: list[RankMemory]) -> float:
    """Bytes of optimizer state on the disks of the node that has most; it is held twice, since an
    update writes the next beside the last."""
    if not config.optim.state_on_disk:
        return 0
    return 2 * _most_of_a_node(config, [rank.state.bytes for rank in ranks])


def host_of_node(config: RunConfig, ranks: list[RankMemory]) -> float:
    """Bytes beside its GPUs' memory that ranks take of the node where they take most: all of
    theirs on a CPU, with GPUs the buckets of a state on disk; and the copy that a checkpoint is
    written from, of the weights and of a state that is not on disk."""
    return _most_of_a_node(config, [_on_host(config, rank) for rank in ranks])


def _on_host(config: RunConfig, rank: RankMemory) -> float:
    state, on_disk = rank.state.bytes, config.optim.state_on_disk
    copy = rank.parameters.held * element_bytes(config) + (0 if on_disk else state)
    if config.parallel.device is Device.cpu:
        return rank.bytes + copy
    return copy + (_BUCKETS * bucket_bytes(config, state) if on_disk else 0)


def _most_of_a_node(config: RunConfig, a_stage: list[float]) -> float:
    parallel = config.parallel
    in_stage = parallel.nodes * parallel.gpus_per_node // parallel.pipeline
    of_rank = [one for one in a_stage for _ in range(in_stage)]
    each = parallel.gpus_per_node
    return max(sum(of_rank[first : first + each]) for first in range(0, len(of_rank), each))


def host_memory(config: RunConfig) -> float | None:
    """Bytes a node has beside its GPUs'; None: unknown."""
    known = config.cluster.hardware.host_memory_gb
    if known is not None:
        return known * GB
    if config.cluster.scheduler is Scheduler.local:
        return float(psutil.virtual_memory().total)
    return None
