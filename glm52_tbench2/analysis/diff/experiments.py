"""The runs that would separate confounded causes, as commands, each proven by composing it."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from ...config.classes import Effect, effect
from ...config.errors import UserError
from ...config.paths import CONF
from ...config.schema import RunConfig
from .causes import Cause
from .compare import Difference, Group
from .sides import Side, experiment_names, plain_knobs

_WORD = re.compile(r"(?!(?:true|false|null|nan|inf)$)[A-Za-z_/][\w./:@%-]*", re.I)
"""Strings that Hydra's grammar takes without quotes."""
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
    found: list[Experiment] = []
    inseparable: list[Inseparable] = []
    spelled = _spell(base)
    if spelled is None:
        reason = f"the config of {base.name} does not compose in this checkout"
        return Plan((), tuple(Inseparable(cause.name, reason) for cause in causes))
    if base.overrides is not None:
        found.append(Experiment(_command(spelled), ()))
    speed = [one.name for one in differences if one.effect is Effect.speed and _is_knob(one)]
    for cause in causes:
        if not cause.knobs:
            inseparable.append(Inseparable(cause.name, _no_knob(cause, base, other)))
            continue
        first_reason = ""
        for names, knobs in _tries(cause, causes, speed):
            overrides, reason = _change(spelled, base, other, knobs)
            if overrides is not None:
                found.append(Experiment(_command(overrides), names))
                break
            first_reason = first_reason or reason
        else:
            inseparable.append(Inseparable(cause.name, first_reason))
    return Plan(tuple(found), tuple(inseparable))


def _tries(
    cause: Cause, causes: Sequence[Cause], speed: Sequence[str]
) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """The cause alone; with the layout it may need; with one other cause; with both."""
    alone = (cause.name,)
    yield alone, list(cause.knobs)
    if speed:
        yield (*alone, "the layout"), [*cause.knobs, *speed]
    others = [one for one in causes if one is not cause and one.knobs]
    for extra in ([], list(speed)) if speed else ([],):
        for one in others:
            layout = ("the layout",) if extra else ()
            yield (*alone, one.name, *layout), [*cause.knobs, *one.knobs, *extra]


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
    spelled: Sequence[str], base: Side, other: Side, knobs: Sequence[str]
) -> tuple[list[str] | None, str]:
    """Overrides of the base with `knobs` as the other side has them; None with the reason."""
    expected = {name: value for name, value in base.knobs.items() if name not in knobs}
    expected |= {name: other.knobs[name] for name in knobs if name in other.knobs}
    for choice in _choices(knobs, expected):
        overrides = _merged(spelled, [choice])
        if _verify(overrides, expected) is None:
            return overrides, ""
    overrides = _merged(spelled, [_set(name, base.knobs, other.knobs) for name in knobs])
    reason = _verify(overrides, expected)
    return (None, reason) if reason else (overrides, "")


def _choices(knobs: Sequence[str], expected: Mapping[str, Any]) -> list[str]:
    """Choices of the knobs' config group that could give the expected values."""
    groups = {name.split(".")[0] for name in knobs}
    group = groups.pop()
    if groups or not (CONF / group).is_dir() or (len(knobs) < 2 and group not in ("data", "model")):
        return []
    found = []
    for path in sorted((CONF / group).glob("*.yaml")):
        content = yaml.safe_load(path.read_text())
        content.pop("defaults", None)
        wanted = {key.removeprefix(f"{group}."): expected.get(key) for key in expected}
        if all(isinstance(v, dict | str) or wanted.get(k) == v for k, v in content.items()):
            found.append(f"{group}={path.stem}")
    return found


def _verify(overrides: Sequence[str], expected: Mapping[str, Any]) -> str | None:
    """Why the overrides do not compose to the expected knobs, None if they do.

    Cosmetic knobs may be what they like.
    """
    try:
        composed = _composed(tuple(overrides))
    except UserError as error:
        return str(error).replace("\n", " ")
    wrong = [
        name
        for name in {**composed, **expected}
        if effect(name) is not Effect.cosmetic and composed.get(name) != expected.get(name)
    ]
    return f"{', '.join(wrong[:3])} cannot be set to what it was" if wrong else None


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


def _spell(side: Side) -> list[str] | None:
    """Overrides that compose the side; of a run, from its experiment or the nearest one."""
    if side.overrides is not None:
        return list(side.overrides)
    names = experiment_names()
    own = [name for name in names if name == side.knobs.get("name")]
    starts = [[f"experiment={name}"] for name in own or names] + ([] if own else [[]])
    spelled = []
    for start in starts:
        have = _composed(tuple(start))
        changed = [
            name
            for name in {**have, **side.knobs}
            if effect(name) is not Effect.cosmetic and have.get(name) != side.knobs.get(name)
        ]
        spelled.append(_merged(start, [_set(name, have, side.knobs) for name in changed]))
    best = min(spelled, key=len)
    return best if _verify(best, side.knobs) is None else None


def _set(name: str, have: Mapping[str, Any], want: Mapping[str, Any]) -> str:
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


def _command(overrides: Sequence[str]) -> str:
    return shlex.join(["glm52", "train", *overrides])
