"""The points of a sweep: named, checked all together, and written down before the first runs.

How a point is then run is no matter of this file.
"""

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..analysis.sweep_files import SWEEP_FILE, assignment
from ..config import checks
from ..config.compose import leaves, save_run_config
from ..config.errors import UserError
from ..config.files import atomic_write_bytes
from ..config.identity import decides, save_identity
from ..config.once import looked_up_once
from ..config.paths import command, short
from ..config.schema import RunConfig
from . import preflight
from .run_folder import identity_now

_NAME_CHARS = 100
_HASH_CHARS = 8
_NAMED = 3
"""Points that a problem names before it counts the rest."""


@dataclass(frozen=True)
class Point:
    """One run of a sweep."""

    name: str
    """Of its folder: what varies, as clip=july,seed=2."""
    overrides: tuple[str, ...]
    """What varies, as it was written."""
    config: RunConfig


@dataclass(frozen=True)
class Draft:
    """A sweep of which some points may not be able to start."""

    base: tuple[str, ...]
    """Overrides that all points share."""
    names: list[str]
    """Each point's name, as :class:`Point` has it."""
    varying: list[tuple[str, ...]]
    """Each point's overrides, as :class:`Point` has them."""
    composed: dict[str, RunConfig]
    """Name -> config of each point that composes."""
    problems: dict[str, list[int]]
    """Problem -> numbers of its points, as :func:`raise_told` takes them."""


@dataclass(frozen=True)
class Plan:
    """A sweep of which every point can start."""

    base: tuple[str, ...]
    """Overrides that all points share."""
    points: tuple[Point, ...]


def plan(overrides: Sequence[Sequence[str]], compose: Callable[[Sequence[str]], RunConfig]) -> Plan:
    """The points of a :func:`draft`. Raises UserError with every problem of every point."""
    drafted = draft(overrides, compose)
    preflight.tell(drafted.composed.values())
    raise_told(drafted.problems, drafted.names, "start")
    points = [
        Point(name, varying, drafted.composed[name])
        for name, varying in zip(drafted.names, drafted.varying, strict=True)
    ]
    return Plan(drafted.base, tuple(points))


@looked_up_once()
def draft(
    overrides: Sequence[Sequence[str]], compose: Callable[[Sequence[str]], RunConfig]
) -> Draft:
    """The points that `overrides` describe, one list a point, and what stands in their way.

    `compose` gives a point's config, its values not yet checked against each other.
    """
    base = tuple(one for one in overrides[0] if all(one in point for point in overrides))
    varying = [tuple(one for one in point if one not in base) for point in overrides]
    names = point_names(varying)
    problems: dict[str, list[int]] = {}
    composed: dict[str, RunConfig] = {}
    alike: dict[str, int] = {}
    for number, (name, whole) in enumerate(zip(names, overrides, strict=True)):
        try:
            config = compose(whole)
        except UserError as error:
            found = str(error).splitlines()
        else:
            first = alike.setdefault(_fingerprint(config), number)
            found = checks.problems(config) + preflight.problems(config)
            if first != number:
                found.append(_duplicate(first, names[first], varying[first] == varying[number]))
            composed[name] = config
        for problem in found:
            problems.setdefault(problem, []).append(number)
    everyone = list(range(len(names)))
    if len({config.cluster.scheduler for config in composed.values()}) > 1:
        problems["some points run here and some under Slurm; write two sweeps."] = everyone
    if not problems:  # each fits the disk; do all of them?
        problems = dict.fromkeys(preflight.disk(list(composed.values())), everyone)
    return Draft(base, names, varying, composed, problems)


@looked_up_once()
def create(planned: Plan, sweep_dir: Path) -> None:
    """Makes the sweep's folder: sweep.json, and each point's run folder, ready to start.

    It is there whole or not at all. Raises UserError when it is there already or cannot be written.
    """
    if sweep_dir.exists():
        raise UserError(
            f"{short(sweep_dir)} is there already; go on with it: "
            f"{command('sweep', 'resume', sweep_dir)}, "
            "or write another hydra.sweep.dir=FOLDER."
        )
    content = {
        "made": time.strftime("%Y-%m-%d %H:%M:%S"),
        "base": planned.base,
        "points": [{"folder": one.name, "overrides": one.overrides} for one in planned.points],
    }
    making = sweep_dir.with_name(f".{sweep_dir.name}.{os.getpid()}.tmp")
    try:
        for point in planned.points:
            write_point(making / point.name, point.config, sweep_dir.name)
        atomic_write_bytes(making / SWEEP_FILE, json.dumps(content, indent=1).encode())
        making.rename(sweep_dir)
    except OSError as error:
        raise UserError(
            f"No sweep folder can be written at {sweep_dir}: {error.strerror}; "
            "write runs_dir=FOLDER on a disk with room."
        ) from error
    finally:
        shutil.rmtree(making, ignore_errors=True)


def write_point(run_dir: Path, config: RunConfig, sweep: str) -> None:
    """Makes the run folder of a point that is to be started later."""
    run_dir.mkdir(parents=True)
    save_run_config(config, run_dir)
    origin = {"sweep": sweep, "point": run_dir.name}
    save_identity(identity_now(config, origin), run_dir, history=[])


def point_names(varying: Sequence[Sequence[str]]) -> list[str]:
    """A folder's name for each point, all different: at most 100 of A-Z a-z 0-9 _ . + - = ,"""
    keys = {assignment(one)[0] for point in varying for one in point}
    names = []
    for number, point in enumerate(varying):
        parts = [f"{short_key(key, keys)}={value}" for key, value in map(assignment, point)]
        name = re.sub(r"[^\w.+=,-]+", "_", ",".join(parts), flags=re.ASCII).strip("._-")
        name = name or f"point{number + 1}"
        if len(name) > _NAME_CHARS:
            name = f"{name[: _NAME_CHARS - _HASH_CHARS - 1]}-{_hash(','.join(point))}"
        names.append(name)
    # Two may differ only in what a folder's name cannot hold, or in nothing.
    return [
        name if names.count(name) == 1 else f"{name[: _NAME_CHARS - 5]}-{number + 1}"
        for number, name in enumerate(names)
    ]


def short_key(key: str, keys: set[str]) -> str:
    """The shortest end of a dotted key that no other of `keys` ends in: optim.lr is lr."""
    parts = key.split(".")
    for count in range(1, len(parts)):
        end = ".".join(parts[-count:])
        if sum(other == end or other.endswith(f".{end}") for other in keys) == 1:
            return end
    return key


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARS]


def _fingerprint(config: RunConfig) -> str:
    """Equal for two configs of the same run."""
    return repr({name: v for name, v in leaves(config).items() if decides(name)})


def _duplicate(number: int, name: str, same_words: bool) -> str:
    if same_words:
        return f"it is there twice, first as point {number + 1}; leave one out."
    return f"it composes to the same run as point {number + 1} ({name}); leave one out."


def raise_told(problems: dict[str, list[int]], names: Sequence[str], what: str) -> None:
    """Raises UserError if there are problems: each once, with the points that have it.

    Args:
        problems: problem -> numbers of its points.
        names: of all points.
        what: what cannot be done, as start.
    """
    told = [f"{_where(numbers, names)}: {problem}" for problem, numbers in problems.items()]
    if len(told) == 1:
        raise UserError(f"The sweep cannot {what}: {told[0]}")
    if told:
        listed = "\n".join(f"  - {one}" for one in told)
        raise UserError(f"The sweep cannot {what}, for {len(told)} reasons:\n{listed}")


def _where(numbers: Sequence[int], names: Sequence[str]) -> str:
    if len(numbers) == len(names) > 1:
        return f"all {len(names)} points"
    shown = " and ".join(names[number] for number in numbers[:_NAMED])
    more = len(numbers) - _NAMED
    return shown + (f" and {more} more" if more > 0 else "")
