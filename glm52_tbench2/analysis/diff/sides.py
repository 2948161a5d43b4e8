"""The sides of a comparison: a run folder, an experiment or overrides, as one kind of facts."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from enum import Enum, StrEnum
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import yaml

from ...config.errors import UserError
from ...config.fingerprints import ABSENT
from ...config.identity import NODE_TELLS
from ...config.paths import CONF, command, resolve
from ...config.schema import RunConfig
from ...tasks.sets import load_set, set_names
from ..sweep_files import SweepFiles

REFERENCE = "reference"
"""How the bare composition is written as a side."""
SET_KNOBS = ("data.train", "data.eval")


class Kind(StrEnum):
    run = "run"
    experiment = "experiment"
    overrides = "overrides"


@dataclass(frozen=True)
class SetFacts:
    """A task set as far as it is known."""

    name: str
    sha256: str | None
    ids: tuple[str, ...] | None
    contents: str | None = None
    """sha256 over the files of its tasks."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Task -> a hash over its files."""


@dataclass(frozen=True)
class Code:
    """Which code ran; what is not known is empty."""

    revision: str = ""
    changes: str = ""
    """A hash of the uncommitted changes."""
    source: str = ""
    """A hash over the source files that decide results."""
    files: tuple[tuple[str, str], ...] = ()
    """Each of those files with a hash of its own."""


@dataclass(frozen=True)
class Side:
    """One side; what is not recorded of it is None."""

    label: str
    """A, B, C ..."""
    name: str
    """As it was written."""
    kind: Kind
    about: str
    knobs: Mapping[str, Any]
    """Dotted knob -> plain value; of a knob that holds keys, one entry a key."""
    sets: Mapping[str, SetFacts] = field(default_factory=dict)
    """data.train and data.eval -> their set."""
    weights: str | None = None
    """Hash of the starting weights."""
    code: Code | None = None
    packages: Mapping[str, str] | None = None
    machine: Mapping[str, str] | None = None
    run: Path | None = None
    overrides: tuple[str, ...] | None = None
    """What composes this side; None of a run."""
    notes: tuple[str, ...] = ()
    """What a reader must know of it, and could not see."""

    @property
    def steps_a_pass(self) -> float | None:
        """Steps in which each training task is drawn once."""
        facts, groups = self.sets.get("data.train"), self.knobs.get("rollout.prompts_per_step")
        if facts is None or facts.ids is None or not isinstance(groups, int) or groups <= 0:
            return None
        return len(facts.ids) * self.knobs.get("rollout.groups_per_draw", 1) / groups


def read_sides(names: Sequence[str]) -> list[Side]:
    """The sides named on a command line, in their order.

    Raises UserError for fewer than two, for a name that is no run, experiment or override, and for
    what does not compose.
    """
    if len(names) < 2:
        raise UserError(
            "glm52 diff compares two sides or more; write glm52 diff A B, each a run folder, an "
            'experiment, or overrides as "experiment=smoke data=mini8".'
        )
    if len(names) > len(ascii_uppercase):
        raise UserError(f"glm52 diff compares at most {len(ascii_uppercase)} sides; name fewer.")
    sides = [_read(label, name) for label, name in zip(ascii_uppercase, names, strict=False)]
    if any(side.kind is Kind.run for side in sides):
        sides = [side if side.kind is Kind.run else _of_this_checkout(side) for side in sides]
    return sides


def plain_knobs(config: RunConfig) -> dict[str, Any]:
    """Every knob of a config: dotted name -> value as it stands in a file."""
    return _flat(RunConfig, _plain(config))


def _read(label: str, name: str) -> Side:
    path, experiments = Path(name).expanduser(), experiment_names()
    if (path / "config.yaml").is_file() or (path.is_dir() and name not in experiments):
        return _run(label, name, path)
    if name == REFERENCE:
        return _composed(label, name, Kind.experiment, (), "the bare composition")
    if "=" in name or name.startswith("~"):
        try:
            overrides = shlex.split(name)
        except ValueError as error:
            raise UserError(
                f"The overrides {name!r} cannot be split into words ({error}); close the quotes."
            ) from error
        return _composed(label, name, Kind.overrides, tuple(overrides), "composed here")
    if name in experiments:
        about = _first_comment(CONF / "experiment" / f"{name}.yaml")
        return _composed(label, name, Kind.experiment, (f"experiment={name}",), about)
    close = get_close_matches(name, [*experiments, REFERENCE], n=1)
    hint = (
        f"did you mean {close[0]}?"
        if close
        else f"write a run folder, one of {', '.join([*experiments, REFERENCE])}, or overrides as "
        '"experiment=smoke data=mini8".'
    )
    raise UserError(f"There is no run folder and no experiment {name}; {hint}")


def experiment_names() -> list[str]:
    """The experiments of conf/experiment."""
    return sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


def _composed(label: str, name: str, kind: Kind, overrides: tuple[str, ...], about: str) -> Side:
    from ...config.compose import compose

    try:
        config = compose(list(overrides))
    except UserError as error:
        raise UserError(f"{label} ({name}) does not compose: {error}") from error
    knobs = plain_knobs(config)
    sets = {knob: _set_of_this_checkout(knobs[knob]) for knob in SET_KNOBS}
    return Side(label, name, kind, about, knobs, sets, overrides=overrides)


def _of_this_checkout(side: Side) -> Side:
    """A composed side with the facts it would have if it were run from here, now."""
    from ...config.compose import compose
    from ...config.identity import identify

    assert side.overrides is not None
    config = compose(list(side.overrides))
    sets = [load_set(config.data.train), load_set(config.data.eval)]
    found = _with_identity(side, asdict(identify(config, sets)))
    # The hash of a folder that is not here says nothing of the weights.
    return found if resolve(config.model.path).is_dir() else replace(found, weights=None)


def _run(label: str, name: str, path: Path) -> Side:
    config = path / "config.yaml"
    if not config.is_file():
        if (path / "sweep.json").is_file():
            two = [one.path for one in SweepFiles.open(path).points[:2]]
            raise UserError(f"{name} is a sweep; name runs of it, as in: {command('diff', *two)}")
        raise UserError(f"{name} is not a run folder: it has no config.yaml.")
    try:
        content = yaml.load(config.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{config} is not readable as YAML: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{config} is not a run's config: it must hold keys and values.")
    knobs = _flat(RunConfig, content)
    sets = {knob: SetFacts(str(knobs[knob]), None, None) for knob in SET_KNOBS if knobs.get(knob)}
    model, tasks = knobs.get("model.name", "?"), knobs.get("data.train", "?")
    side = Side(label, name, Kind.run, f"{model} on {tasks}", knobs, sets, run=path.resolve())
    try:
        identity = json.loads((path / "identity.json").read_text())
        if not isinstance(identity, dict):
            raise ValueError("it holds no keys and values")
    except (OSError, ValueError):
        note = "its identity.json is not readable, so its code, packages and weights are unknown"
        return replace(side, notes=(note,))
    return _with_identity(side, identity)


def _with_identity(side: Side, identity: Mapping[str, Any]) -> Side:
    """The side with what its identity records; keys of older or newer versions may be absent."""
    made = identity.get("made") or {}
    recorded = identity.get("code") or ""
    contents = identity.get("tasks") or {}
    if isinstance(recorded, str):
        sources = tuple(sorted((made.get("sources") or {}).items()))
        code = Code(made.get("revision", ""), made.get("changes", ""), recorded, sources)
    else:
        code = Code(recorded.get("revision", ""), recorded.get("changes", ""))
    hashes, ids = identity.get("task_sets") or {}, made.get("task_ids") or {}
    files = made.get("task_files") or {}
    sets = {}
    for knob, known in side.sets.items():
        sha256 = hashes.get(known.name) or known.sha256
        listed = ids.get(known.name)
        here = known if known.ids is not None else _set_of_this_checkout(known.name)
        if listed is None and here.sha256 == sha256:
            listed = here.ids
        content = contents.get(known.name)
        sets[knob] = SetFacts(
            known.name,
            sha256,
            None if listed is None else tuple(listed),
            None if content == ABSENT else content,
            {task: files[task] for task in listed or () if task in files},
        )
    known_as = identity.get("hash")
    return replace(
        side,
        about=f"{side.about} · {known_as}" if known_as else side.about,
        sets=sets,
        weights=identity.get("model") or None,
        code=replace(code, revision="" if code.revision == "unknown" else code.revision),
        packages=_told(identity.get("packages")),
        machine=_told(made.get("machine")),
        notes=(*side.notes, *_resumed(identity.get("history") or [])),
    )


def _told(facts: Mapping[str, Any] | None) -> dict[str, str] | None:
    """Facts as text; None while the node that will tell them has not started."""
    if not facts or NODE_TELLS in facts.values():
        return None
    return {name: str(value) for name, value in facts.items()}


def _resumed(history: Sequence[Mapping[str, Any]]) -> list[str]:
    changed = [line for entry in history for line in entry.get("differences", [])]
    if not changed:
        return []
    return [f"it was resumed as another run than it was started as: {'; '.join(changed)}"]


def _set_of_this_checkout(name: str) -> SetFacts:
    if name not in set_names():
        return SetFacts(name, None, None)
    found = load_set(name)
    return SetFacts(name, found.sha256, found.ids)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _flat(cls: type, content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The schema's knobs in its order, then whatever else `content` holds, in its own."""
    types = {one.name: one.type for one in fields(cls)}
    found: dict[str, Any] = {}
    for name in [*types, *(name for name in content if name not in types)]:
        if name not in content:
            continue
        value, kind = content[name], types.get(name)
        if isinstance(value, dict):
            inner = kind if isinstance(kind, type) and is_dataclass(kind) else _NoKnobs
            found |= _flat(inner, value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


@dataclass
class _NoKnobs:
    """The schema of a knob that holds any keys."""


def _first_comment(path: Path) -> str:
    found = re.search(r"^# (?!@package)(.+)$", path.read_text(), re.M)
    return found[1] if found else ""
