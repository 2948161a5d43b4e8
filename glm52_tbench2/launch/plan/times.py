"""What a step and a weight update must at least take: operations and bytes against peak rates.

A floor, not a forecast: every rate is the hardware's peak, communication hides behind arithmetic,
and no rank waits but for the pipeline to fill.
"""

from dataclasses import dataclass

from ...config.schema import Device, Recompute, RunConfig, WeightTransport
from .activations import element_bytes, longest
from .engines import weight_bytes
from .memory import GB, RankMemory
from .parameters import StageParameters, active, total


@dataclass(frozen=True)
class StepTimes:
    """One training step in which every sample fills its session budget."""

    tokens: int
    flops: float
    """Operations of all ranks, recomputation included."""
    fabric_bytes: float
    """What a rank receives from others."""
    arithmetic_s: float | None
    """None, here and below: the hardware's rate is unknown."""
    communication_s: float | None
    """Hidden behind arithmetic, so it counts where it takes longer."""
    state_s: float | None
    """Optimizer state from and to a node's disks, after the backward pass."""

    @property
    def floor_s(self) -> float | None:
        """The least a step can take, seconds."""
        if self.arithmetic_s is None or self.communication_s is None or self.state_s is None:
            return None
        return max(self.arithmetic_s, self.communication_s) + self.state_s


@dataclass(frozen=True)
class UpdateTimes:
    """New weights on their way to the engines."""

    transport: str
    bytes: float
    floor_s: float | None
    how: str


def step_times(
    config: RunConfig, stages: list[StageParameters], ranks: list[RankMemory]
) -> StepTimes:
    """Of the layout whose stages hold these parameters."""
    parallel, hardware = config.parallel, config.cluster.hardware
    samples = config.rollout.prompts_per_step * config.rollout.samples_per_prompt
    session = config.rollout.max_session_tokens
    forward = samples * (
        2 * session * active(stages, config.model, parallel) + _attention(config, session)
    )
    # Backward costs twice the forward pass; a second update on a batch scores it first.
    passes = 3 + (parallel.recompute is Recompute.full) + (config.optim.steps_per_batch > 1)
    flops = forward * passes
    num_ranks = parallel.nodes * parallel.gpus_per_node
    on_gpu = parallel.device is Device.cuda
    peak = hardware.gpu_bf16_tflops if on_gpu else None
    fill = _fill(config, samples)
    link, fabric = hardware.gpu_link_gb_s, hardware.fabric_gb_s
    inside, outside = _received(config, samples * session)
    talked = (
        None
        if not on_gpu or link is None or fabric is None
        else fill * (inside / (link * GB) + outside / (fabric * GB))
    )
    return StepTimes(
        tokens=samples * session,
        flops=flops,
        fabric_bytes=inside + outside,
        arithmetic_s=None if peak is None else fill * flops / (num_ranks * peak * 1e12),
        communication_s=talked,
        state_s=_state_s(config, ranks),
    )


def _attention(config: RunConfig, session: int) -> float:
    """Operations of a sequence's attention scores and sums, one forward pass.

    Keys that an indexer did not choose are masked by the trainer and cost as much as others.
    """
    model = config.model
    width = model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim
    pairs = session**2 / 2
    scores = 2 * pairs * model.num_heads * width * model.num_layers
    return scores + 2 * pairs * model.index_heads * model.index_head_dim * len(model.index_layers)


def _fill(config: RunConfig, samples: int) -> float:
    """A pipeline's time over that of its work: it fills and drains once an update."""
    parallel = config.parallel
    replicas = parallel.nodes * parallel.gpus_per_node
    replicas //= parallel.tensor * parallel.context * parallel.pipeline
    together = max(1, longest(config) // config.rollout.max_session_tokens)
    micros = max(1, samples // (replicas * config.optim.steps_per_batch * together))
    return (micros + parallel.pipeline - 1) / micros


def _received(config: RunConfig, tokens: int) -> tuple[float, float]:
    """Bytes a rank receives in a step from its own node and from others."""
    model, parallel = config.model, config.parallel
    replicas = parallel.nodes * parallel.gpus_per_node
    replicas //= parallel.tensor * parallel.context * parallel.pipeline
    mine = tokens / (replicas * parallel.context)
    layers = model.num_layers / parallel.pipeline
    mixtures = (model.num_layers - model.num_dense_layers) / parallel.pipeline
    # Forward, backward and, where it is made again, once more.
    passes = 2 + (parallel.recompute is Recompute.full)
    row = model.hidden_size * element_bytes(config)
    heads = model.num_heads / parallel.tensor * element_bytes(config)
    width = model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim
    # Gathered before and scattered after attention, and in the dense and shared experts.
    tensor = passes * layers * 4 * mine * row * (parallel.tensor - 1) / parallel.tensor
    context = passes * layers * mine * (parallel.context - 1) * heads * width
    sent = mine / parallel.tensor * model.experts_per_token * row
    others = (parallel.expert - 1) / parallel.expert + parallel.expert_tensor - 1
    experts = passes * mixtures * 2 * sent * others
    stages = 2 * mine / parallel.tensor * row * (parallel.pipeline > 1)
    # Ranks of a tensor group are neighbours, those of a context group next, then of a stage.
    a_node, exchange = parallel.gpus_per_node, parallel.expert * parallel.expert_tensor
    beside = max(1, a_node // parallel.tensor)
    in_stage = parallel.nodes * a_node // parallel.pipeline
    outside = (
        tensor * _from_others(parallel.tensor, a_node, passed_on=True)
        + context * _from_others(parallel.context, beside, passed_on=True)
        + experts * _from_others(exchange, a_node, passed_on=False)
        + stages * (in_stage >= a_node)
    )
    return tensor + context + experts + stages - outside, outside


def _from_others(size: int, in_node: int, *, passed_on: bool) -> float:
    """Of what a rank of a group receives, the share that must come from other nodes.

    `passed_on`: all receive the same, so a node fetches it once and its ranks pass it on.
    """
    near = min(size, in_node)
    if size == near:
        return 0.0
    return (size - near) / (size - 1) / (near if passed_on else 1)


def _state_s(config: RunConfig, ranks: list[RankMemory]) -> float | None:
    if not config.optim.state_on_disk:
        return 0.0
    rate = config.cluster.hardware.disk_gb_s
    if rate is None:
        return None
    most = max(rank.state.bytes for rank in ranks) * config.parallel.gpus_per_node
    return 2 * config.optim.steps_per_batch * most / (rate * GB)


def update_times(config: RunConfig, stages: list[StageParameters]) -> list[UpdateTimes]:
    """Of every transport, the config's own first."""
    engine, hardware = config.engine, config.cluster.hardware
    size = total(stages, config.parallel) * weight_bytes(config)
    link, fabric, disk = hardware.gpu_link_gb_s, hardware.fabric_gb_s, hardware.disk_gb_s
    found = [
        UpdateTimes(
            "distributed",
            size,
            _over(size, fabric),
            "broadcast from one rank: its bandwidth to other nodes",
        ),
        UpdateTimes(
            "disk",
            size,
            _over(2 * size, disk),
            "written once, then read by every engine's node at one time",
        ),
        UpdateTimes("tensor", size, _over(size, link), "handed over in the memory of one machine"),
    ]
    if config.cluster.nodes > 1:
        found = [one for one in found if one.transport != WeightTransport.tensor.name]
    return sorted(found, key=lambda one: one.transport != engine.transport.name)


def _over(size: float, rate: float | None) -> float | None:
    return None if rate is None else size / (rate * GB)
