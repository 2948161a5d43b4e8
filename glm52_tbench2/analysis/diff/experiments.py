"""The runs that would separate confounded causes, as commands, each proven by composing it."""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import yaml

from ...config.classes import Effect, effect
from ...config.errors import UserError
from ...config.paths import CONF, command
from ...config.schema import RunConfig
from .causes import Cause
from .compare import Difference, Group
from .sides import Side, experiment_names, plain_knobs

_WORD = re.compile(r"(?!(?:true|false|null|nan|inf)$)[A-Za-z_/][\w./:@%-]*", re.I)
"""Strings that Hydra's grammar takes without quotes."""
Knobs = Mapping[str, Any]
"""Dotted knob -> plain value."""
_LAYOUT = "the layout"
"""What changes speed only, where a cause needs it to compose."""
_NAMED_GROUPS = ("data", "model")
"""Config groups whose choices say more than a single knob."""
_OPEN = ("engine.server_args.", "engine.server_env.")
"""Knobs that take any key: Hydra wants to be told that a key is new."""


@dataclass(frozen=True)
class Experiment:
    """One run to make."""

    command: str
    changes: tuple[str, ...]
    """The causes that it changes from the base; none: it is the base."""


@dataclass(frozen=True)
class Inseparable:
    """A cause that no run of this checkout can change alone."""

    cause: str
    reason: str


@dataclass(frozen=True)
class Plan:
    experiments: tuple[Experiment, ...]
    inseparable: tuple[Inseparable, ...]


def separate(
    base: Side, other: Side, differences: Sequence[Difference], causes: Sequence[Cause]
) -> Plan:
    """One run for each cause that changes it alone, or with the least it needs to compose."""
    found: dict[str, Experiment] = {}
    inseparable: list[Inseparable] = []
    spelled = spell(base.knobs) if base.overrides is None else list(base.overrides)
    if spelled is None:
        reason = f"the config of {base.name} does not compose in this checkout"
        return Plan((), tuple(Inseparable(cause.name, reason) for cause in causes))
    knobs = {cause.name: cause.knobs for cause in causes if cause.knobs}
    layout = [one.name for one in differences if one.effect is Effect.speed and _is_knob(one)]
    if layout:
        knobs[_LAYOUT] = tuple(layout)

    def change(names: Sequence[str]) -> str:
        """Adds the run that changes these causes for the first of them; else says why not."""
        together = [knob for name in names for knob in knobs[name]]
        overrides, reason = _change(spelled, base.knobs, other.knobs, together)
        if overrides is not None:
            found[names[0]] = Experiment(command("train", *overrides), tuple(names))
        return reason

    waiting = {}
    for cause in causes:
        if not cause.knobs:
            inseparable.append(Inseparable(cause.name, _no_knob(cause, base, other)))
        elif reason := change([cause.name]):
            waiting[cause.name] = reason
    for name in waiting:
        for extra in sorted(knobs, key=_LAYOUT.__ne__):
            if extra != name and not change([name, extra]):
                break
    for name, reason in waiting.items():
        joined = [run.changes for run in found.values() if len(run.changes) > 1]
        if name not in found and all(change([name, *extra]) for extra in joined):
            inseparable.append(Inseparable(name, reason.rstrip(".")))
    runs = [found[cause.name] for cause in causes if cause.name in found]
    if base.overrides is not None:
        runs.insert(0, Experiment(command("train", *spelled), ()))
    return Plan(tuple(runs), tuple(inseparable))


def _is_knob(difference: Difference) -> bool:
    return difference.group in (Group.config, Group.tasks)


def _no_knob(cause: Cause, base: Side, other: Side) -> str:
    group = cause.differences[0].group
    if group is Group.code:
        revision = other.code.revision[:12] if other.code and other.code.revision else ""
        where = f" ({revision})" if revision else ""
        return f"no knob changes it; run {base.label} from the code of {other.label}{where}"
    if group is Group.packages:
        return f"no knob changes them; run {base.label} with the packages of {other.label}"
    if group is Group.weights:
        return f"model.path is the same; run {base.label} with the weights of {other.label} there"
    return f"no knob changes it; run {base.label} with the files of {other.label}"


def _change(
    spelled: Sequence[str], have: Knobs, want: Knobs, knobs: Sequence[str]
) -> tuple[list[str] | None, str]:
    """Overrides that make `knobs` what they are in `want`, and leave the others as they are.

    `spelled`: overrides that compose to `have`. None with the reason if they would not compose.
    """
    expected = {name: value for name, value in have.items() if name not in knobs}
    expected |= {name: want[name] for name in knobs if name in want}
    groups: dict[str, list[str]] = {}
    for name in knobs:
        groups.setdefault(name.split(".")[0], []).append(name)
    choices = {
        group: found
        for group, names in groups.items()
        if (len(names) > 1 or group in _NAMED_GROUPS) and (found := _choices(group, expected, want))
    }
    values = {name: _set(name, have, want) for name in knobs}
    for picked in product(*choices.values()) if choices else ():
        rest = [text for name, text in values.items() if name.split(".")[0] not in choices]
        overrides = _merged(spelled, [*picked, *rest])
        if _verify(overrides, expected, choices, want) is None:
            return overrides, ""
    overrides = _merged(spelled, list(values.values()))
    reason = _verify(overrides, expected)
    return (None, reason) if reason else (overrides, "")


def _choices(group: str, expected: Knobs, other: Knobs) -> list[str]:
    """Choices of a config group that could give the expected values, maybe at another speed."""

    def fits(name: str, value: Any) -> bool:
        return (
            isinstance(value, dict)
            or value == expected.get(name)
            or (value == other.get(name) and effect(name) is Effect.speed)
            or effect(name) is Effect.cosmetic
        )

    found = []
    for path in sorted((CONF / group).glob("*.yaml")):
        content = yaml.safe_load(path.read_text())
        content.pop("defaults", None)
        if all(fits(f"{group}.{key}", value) for key, value in content.items()):
            found.append(f"{group}={path.stem}")
    return found


def _verify(
    overrides: Sequence[str],
    expected: Knobs,
    chosen: Container[str] = (),
    other: Knobs | None = None,
) -> str | None:
    """Why the overrides do not compose to the expected knobs, None if they do.

    Cosmetic knobs may be what they like; those of `chosen` groups that change speed only may be
    what they are on the other side.
    """
    try:
        composed = _composed(tuple(overrides))
    except UserError as error:
        return str(error).replace("\n", " ")
    wrong = [
        name
        for name in {**composed, **expected}
        if effect(name) is not Effect.cosmetic
        and composed.get(name) != expected.get(name)
        and not (
            other is not None
            and name.split(".")[0] in chosen
            and effect(name) is Effect.speed
            and composed.get(name) == other.get(name)
        )
    ]
    return f"{', '.join(wrong[:3])} cannot be set to what it was" if wrong else None


@cache
def _composed(overrides: tuple[str, ...]) -> dict[str, Any]:
    """The knobs that `overrides` compose to. Raises UserError.

    Choices of config groups are composed once; Hydra applies values on top of them, so the same is
    done here, with its parser and the checks of a composition.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from ...config.compose import checked, explain

    choices = tuple(one for one in overrides if (CONF / _override_key(one)).is_dir())
    config = OmegaConf.structured(_chosen(choices))
    try:
        for one in OverridesParser.create().parse_overrides(
            [one for one in overrides if one not in choices]
        ):
            if one.is_delete():
                parent, _, key = one.key_or_group.rpartition(".")
                del OmegaConf.select(config, parent)[key]
            else:
                OmegaConf.update(config, one.key_or_group, one.value(), merge=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(explain(error)) from error
    return plain_knobs(checked(config))


@cache
def _chosen(choices: tuple[str, ...]) -> RunConfig:
    from ...config.compose import compose

    return compose(list(choices))


def spell(knobs: Knobs) -> list[str] | None:
    """Overrides that compose a run's knobs, from its experiment or the nearest one; None where
    there are none in this checkout."""
    names = experiment_names()
    own = [name for name in names if name == knobs.get("name")]
    starts = [[f"experiment={name}"] for name in own or names] + ([] if own else [[]])
    spelled = []
    for start in starts:
        have = _composed(tuple(start))
        changed = [
            name
            for name in {**have, **knobs}
            if effect(name) is not Effect.cosmetic and have.get(name) != knobs.get(name)
        ]
        overrides, _ = _change(start, have, knobs, changed)
        if overrides is not None and _verify(overrides, knobs) is None:
            spelled.append(overrides)
    return min(spelled, key=len, default=None)


def _set(name: str, have: Knobs, want: Knobs) -> str:
    """The override that makes knob `name` what it is in `want`."""
    if name not in want:
        return f"~{name}"
    new = "++" if name.startswith(_OPEN) and name not in have else ""
    return f"{new}{name}={_written(want[name])}"


def _written(value: Any) -> str:
    """A value in Hydra's grammar."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(_written, value))}]"
    if isinstance(value, str) and not _WORD.fullmatch(value):
        return "'" + re.sub(r"(\\*)'", r"\1\1\\'", value) + "'"
    return str(value)


def _merged(overrides: Sequence[str], new: Sequence[str]) -> list[str]:
    """`new` after the overrides that it does not replace."""
    keys = {_override_key(one) for one in new}
    return [*(one for one in overrides if _override_key(one) not in keys), *new]


def _override_key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]
