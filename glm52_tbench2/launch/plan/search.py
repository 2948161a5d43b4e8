"""Every layout of the trainer on the nodes there are: which fit, which is best, why others do not.

Parameters are counted in closed form, so hundreds of layouts take a second or two.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from ...config import checks
from ...config.schema import ParallelConfig, RunConfig
from ...trainer import limits
from . import parameters
from .findings import heaviest, memory_problems, trainer_ranks
from .memory import GB
from .planned import layout
from .times import step_times


@dataclass(frozen=True)
class Candidate:
    """One layout. Figures are None where it cannot be reckoned with, or a rate is unknown."""

    name: str
    overrides: list[str]
    """What makes it of the config that was searched."""
    current: bool
    """Whether it is the config's own."""
    problem: str | None
    """Why it does not fit: the first reason; None: it fits."""
    floor_s: float | None = None
    """The least a step takes."""
    bytes: float = 0
    """Memory of its fullest rank."""
    room: float | None = None
    """Share of a GPU's memory that is left on it."""
    state_bytes: float = 0
    """Optimizer state of its heaviest rank."""
    on_disk: bool = False
    """Whether that lies on disk."""


def search(config: RunConfig) -> tuple[list[Candidate], list[str]]:
    """All layouts of config.parallel's ranks, and what stands against every one of them.

    Those that fit come first, the best of them first: by the floor of a step's time, then by what
    is left of a GPU's memory.
    """
    changed = [replace(config, parallel=parallel) for parallel in _layouts(config)]
    against = [[*checks.problems(one), *limits.problems(one)] for one in changed]
    always = [one for one in against[0] if all(one in found for found in against)]
    found = [
        _judged(one, [problem for problem in problems if problem not in always], config)
        for one, problems in zip(changed, against, strict=True)
    ]
    ordered = sorted(
        found,
        key=lambda one: (
            one.problem is not None,
            float("inf") if one.floor_s is None else one.floor_s,
            one.bytes,
        ),
    )
    return ordered, always


def as_json(found: list[Candidate]) -> list[dict[str, Any]]:
    """docs/plan.md tells the keys."""
    return [
        {
            "layout": one.name,
            "overrides": one.overrides,
            "current": one.current,
            "fits": one.problem is None,
            "problem": one.problem,
            "step_floor_s": one.floor_s,
            "rank_bytes": one.bytes or None,
            "free_share": one.room,
            "optimizer_state_bytes": one.state_bytes or None,
            "state_on_disk": one.on_disk,
        }
        for one in found
    ]


def _layouts(config: RunConfig) -> Iterator[ParallelConfig]:
    """Every way to cut the ranks, the model's layers spread over stages as evenly as they can."""
    parallel = config.parallel
    ranks = parallel.nodes * parallel.gpus_per_node
    for pipeline in _divisors(ranks):
        cut = _even_stages(config, pipeline)
        if cut is None:
            continue
        in_stage = ranks // pipeline
        for tensor in _divisors(in_stage):
            for context in _divisors(in_stage // tensor):
                for expert in _divisors(in_stage):
                    for expert_tensor in sorted({1, tensor}):
                        if in_stage % (expert * expert_tensor):
                            continue
                        yield replace(
                            parallel,
                            tensor=tensor,
                            context=context,
                            pipeline=pipeline,
                            pipeline_layers=cut,
                            expert=expert,
                            expert_tensor=expert_tensor,
                            sequence_parallel=tensor > 1 or parallel.sequence_parallel,
                        )


def _divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]


def _even_stages(config: RunConfig, pipeline: int) -> list[int] | None:
    """Layers of each of so many stages, their squares summing to least; None: there is no cut
    whose stages all start on a layer that may be the first of one."""
    num_layers = config.model.num_layers
    if pipeline == 1:
        return []
    starts = [layer - 1 for layer in config.model.index_layers] or list(range(num_layers))
    best: dict[int, tuple[int, list[int]]] = {0: (0, [0])}
    for _ in range(pipeline - 1):
        further: dict[int, tuple[int, list[int]]] = {}
        for last, (cost, path) in best.items():
            for start in (start for start in starts if start > last):
                more = cost + (start - last) ** 2
                if start not in further or more < further[start][0]:
                    further[start] = (more, [*path, start])
        best = further
    ends = [(cost + (num_layers - last) ** 2, path) for last, (cost, path) in best.items()]
    if not ends:
        return None
    return [after - before for before, after in pairwise([*min(ends)[1], num_layers])]


def _judged(config: RunConfig, problems: list[str], searched: RunConfig) -> Candidate:
    """`problems`: what stands against the layout before its memory is reckoned."""
    name = layout(config)
    bare = Candidate(name, _overrides(config.parallel), name == _name(searched), None)
    if found := problems or memory_problems(config):
        return replace(bare, problem=found[0])
    held = parameters.stages(config)
    ranks = trainer_ranks(config, held)
    fullest, known = heaviest(ranks).bytes, config.cluster.hardware.gpu_memory_gb
    return replace(
        bare,
        floor_s=step_times(config, held, ranks).floor_s,
        bytes=fullest,
        room=None if known is None else 1 - fullest / (known * GB),
        state_bytes=max(rank.state.bytes for rank in ranks),
        on_disk=config.optim.state_on_disk,
    )


def _name(config: RunConfig) -> str | None:
    """Of a layout that may be none: None."""
    return None if checks.problems(config) else layout(config)


def _overrides(parallel: ParallelConfig) -> list[str]:
    cut = ",".join(map(str, parallel.pipeline_layers))
    return [
        f"parallel.tensor={parallel.tensor}",
        f"parallel.context={parallel.context}",
        f"parallel.pipeline={parallel.pipeline}",
        f"parallel.pipeline_layers=[{cut}]",
        f"parallel.expert={parallel.expert}",
        f"parallel.expert_tensor={parallel.expert_tensor}",
        f"parallel.sequence_parallel={str(parallel.sequence_parallel).lower()}",
    ]
