"""What `glm52 train --dry-run` shows of a run or a sweep. Nothing is written."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..config.errors import UserError
from ..config.once import looked_up_once
from ..config.paths import resolve
from ..config.schema import RunConfig, Scheduler
from . import preflight
from .placement import place
from .run_folder import identity_now
from .slurm.submit import arrays, script
from .sweep_plan import Draft


def run(config: RunConfig) -> str:
    """Each node's roles, and the batch script that a run would be queued with under Slurm.

    Raises UserError for a name that cannot be a folder's.
    """
    if found := preflight.name_problems(config):
        raise UserError(found[0])
    preflight.tell([config])
    folder = resolve(config.runs_dir) / config.name / "slurm"
    if config.cluster.scheduler is Scheduler.local:
        return f"# It runs on this machine.\n{_roles({1: config})}"
    return script(config, folder) + _roles({1: config})


@looked_up_once()
def points(drafted: Draft, sweep_dir: Path) -> str:
    """Each point's run folder, identity and overrides, in their order."""
    rows = [
        (name, _identity(drafted.composed.get(name)), " ".join(overrides))
        for name, overrides in zip(drafted.names, drafted.varying, strict=True)
    ]
    wide = max(len(name) for name, _, _ in rows)
    return "\n".join(
        [
            f"# Sweep folder: {sweep_dir}",
            f"# {len(rows)} points, all with: {' '.join(drafted.base)}",
            "# folder, identity and what varies:",
            *(
                f"# {number:>3}  {name:<{wide}}  {identity:<16}  {overrides}"
                for number, (name, identity, overrides) in enumerate(rows, 1)
            ),
            "",
        ]
    )


def jobs(drafted: Draft, sweep_dir: Path) -> str:
    """How the points would run: the batch script and the roles of each job, or one by one."""
    composed = {
        number: drafted.composed[name]
        for number, name in enumerate(drafted.names, 1)
        if name in drafted.composed
    }
    if all(one.cluster.scheduler is Scheduler.local for one in composed.values()):
        return "# They run on this machine, one after another, in this order.\n"
    kinds = arrays(composed)
    told = []
    for job, numbers in enumerate(kinds, 1):
        configs = {number: composed[number] for number in numbers}
        text = script(composed[numbers[0]], sweep_dir / "slurm", len(numbers))
        told.append(f"\n# Job {job} of {len(kinds)}: {_numbered(numbers)}\n{text}{_roles(configs)}")
    return "".join(told)


def _roles(configs: Mapping[int, RunConfig]) -> str:
    """Each node's roles, once for all points that place them alike."""
    alike: dict[str, list[int]] = {}
    for number, config in configs.items():
        placed = place(config, Path())
        lines = []
        for node in range(config.cluster.nodes):
            roles = [spec.name for spec in placed if spec.node == node]
            lines.append(f"# {node:>3}  {' '.join(roles) or '(none)'}\n")
        alike.setdefault("".join(lines), []).append(number)
    return "".join(
        f"\n# Roles of each node{f', {_numbered(numbers)}' if len(alike) > 1 else ''}\n{lines}"
        for lines, numbers in alike.items()
    )


def _numbered(numbers: Sequence[int]) -> str:
    """As points 1-3, 7; the numbers ascend."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    told = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"point{'s' * (len(numbers) > 1)} {told}"


def _identity(config: RunConfig | None) -> str:
    """The hash of a run's identity, - where it has none."""
    try:
        return identity_now(config).hash if config else "-"
    except UserError:  # its problems are told
        return "-"
