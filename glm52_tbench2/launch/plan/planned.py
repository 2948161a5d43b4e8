"""The plan of one run: everything that is known of it before it is started."""

from dataclasses import asdict, dataclass
from typing import Any

from ...config import checks
from ...config.schema import Device, RunConfig
from ...trainer import limits
from . import parameters
from .activations import element_bytes
from .count import count
from .engines import EngineMemory, engine_memory
from .findings import heaviest, memory_problems, trainer_ranks
from .memory import GB, RankMemory, disk_of_node, host_memory, host_of_node, state_bytes
from .times import StepTimes, UpdateTimes, step_times, update_times

JSON_VERSION = 1


@dataclass(frozen=True)
class Plan:
    """What a run needs, and what stands against it."""

    config: RunConfig
    problems: list[str]
    """Each with its mend; empty: it fits."""
    ranks: list[RankMemory]
    """A rank of each pipeline stage."""
    engine: EngineMemory
    step: StepTimes
    updates: list[UpdateTimes]

    @property
    def fullest(self) -> RankMemory:
        """The rank whose memory is fullest."""
        return heaviest(self.ranks)

    @property
    def total(self) -> int:
        """Parameters of the model."""
        return parameters.total([one.parameters for one in self.ranks], self.config.parallel)

    @property
    def active(self) -> int:
        """Parameters that a token meets."""
        held = [one.parameters for one in self.ranks]
        return parameters.active(held, self.config.model, self.config.parallel)

    @property
    def state_bytes(self) -> int:
        """The optimizer's state of every parameter once."""
        frozen = sum(one.parameters.frozen for one in self.ranks)
        return state_bytes(self.config, self.total - frozen)

    @property
    def checkpoint_bytes(self) -> int:
        """One checkpoint: weights and the optimizer's state, each once."""
        return self.total * element_bytes(self.config) + self.state_bytes

    @property
    def disk_bytes(self) -> float:
        """Optimizer state on the disks of a trainer's node."""
        return disk_of_node(self.config, self.ranks)

    @property
    def host_bytes(self) -> float:
        """Memory that trainer ranks take of a node beside its GPUs'."""
        return host_of_node(self.config, self.ranks)

    @property
    def kv_sessions(self) -> float | None:
        """Sessions of the whole budget that all engines hold at one time."""
        if self.engine.kv_tokens is None:
            return None
        ranks = self.config.engine.num_engines * self.engine.attention_ranks
        return ranks * self.engine.kv_tokens / self.config.rollout.max_session_tokens


def plan(config: RunConfig) -> Plan:
    """The plan of a config whose knobs do not contradict each other, its parameters counted in the
    trainer's own model.

    Raises UserError when that cannot be built.
    """
    held = count([config])[0]
    ranks = trainer_ranks(config, held)
    return Plan(
        config,
        [*(limits.problems(config) if config.trains else []), *memory_problems(config)],
        ranks,
        engine_memory(config),
        step_times(config, held, ranks),
        update_times(config, held),
    )


def layout(config: RunConfig) -> str:
    """As TP2 CP4 PP4 (18-20-20-20) EP8 DP1."""
    parallel = config.parallel
    sizes = checks.stage_sizes(config)
    cut = f" ({'-'.join(map(str, sizes))})" if len(sizes) > 1 else ""
    experts = f"EP{parallel.expert}"
    if parallel.expert_tensor > 1:
        experts += f" ETP{parallel.expert_tensor}"
    ranks = parallel.nodes * parallel.gpus_per_node
    data = ranks // (parallel.tensor * parallel.context * parallel.pipeline)
    return f"TP{parallel.tensor} CP{parallel.context} PP{parallel.pipeline}{cut} {experts} DP{data}"


def assumptions(config: RunConfig) -> list[str]:
    """What the figures take for granted, in words."""
    hardware = config.cluster.hardware
    told = [
        f"cluster.hardware.{name}={value:g}"
        for name, value in asdict(hardware).items()
        if value is not None
    ]
    return [
        *([", ".join(told) + ": read from conf/, not measured"] if told else []),
        "every sample fills rollout.max_session_tokens; experts are visited evenly",
        "rates are peaks: a real step takes longer than its floor"
        if config.parallel.device is Device.cuda
        else "no rate of a CPU is known, so no time is told",
    ]


def as_json(found: Plan) -> dict[str, Any]:
    """Version 1: docs/plan.md tells the keys. Bytes and seconds; null: unknown."""
    config = found.config
    return {
        "version": JSON_VERSION,
        "fits": not found.problems,
        "problems": found.problems,
        "layout": {"name": layout(config), **_plain(config.parallel)},
        "parameters": {"total": found.total, "active": found.active},
        "ranks": [
            {
                "stage": rank.stage + 1,
                "layers": rank.layers,
                "parameters": asdict(rank.parameters) | {"held": rank.parameters.held},
                "bytes": {part.name.replace(" ", "_"): part.bytes for part in rank.parts},
                "total_bytes": rank.bytes,
                "optimizer_state_bytes": rank.state.bytes,
            }
            for rank in found.ranks
        ],
        "node": {
            "disk_bytes": found.disk_bytes,
            "host_bytes": found.host_bytes,
            "host_memory_bytes": host_memory(config),
        },
        "checkpoint_bytes": found.checkpoint_bytes,
        "optimizer_state_bytes": found.state_bytes,
        "engine": asdict(found.engine) | {"sessions": found.kv_sessions},
        "step": asdict(found.step) | {"floor_s": found.step.floor_s},
        "updates": [asdict(one) for one in found.updates],
        "assumptions": assumptions(config),
        "gpu_memory_bytes": None
        if config.cluster.hardware.gpu_memory_gb is None
        else config.cluster.hardware.gpu_memory_gb * GB,
    }


def _plain(node: Any) -> dict[str, Any]:
    return {name: getattr(value, "value", value) for name, value in asdict(node).items()}
