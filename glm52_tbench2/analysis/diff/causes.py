"""What a comparison allows to conclude: differences joined into causes, and a verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ...config.classes import Effect
from ...config.paths import command
from .compare import Difference, Group, incomparable
from .sides import Side

_CHOICES = {
    "clip.advantage": ("clip.std_normalise",),
    "clip.loss": ("clip.eps_low", "clip.eps_high", "clip.dual_clip"),
    "clip.correction": (
        "clip.correction_low",
        "clip.correction_high",
        "clip.mis",
        "clip.dppo_delta",
    ),
    "clip.overlong": ("clip.overlong_buffer", "clip.overlong_factor"),
    "rollout.mode": ("rollout.pause_mode", "rollout.max_staleness"),
    "sandbox.provider": ("sandbox",),
}
"""Knob -> prefixes of those that are its parameters: where it changes, they change with it."""
_TASKS, _MODEL, _ENGINE = "the task set", "the model", "the engine"
_CODE, _PACKAGES = "the code", "the packages"


class Verdict(StrEnum):
    same = "no difference"
    cosmetic = "cosmetic only"
    speed = "speed only"
    seed = "another seed"
    clean = "one cause"
    confounded = "confounded"


@dataclass(frozen=True)
class Cause:
    """Differences that were one decision."""

    name: str
    effect: Effect
    """The gravest of its differences."""
    differences: tuple[Difference, ...]

    @property
    def knobs(self) -> tuple[str, ...]:
        return tuple(
            one.name for one in self.differences if one.group in (Group.tasks, Group.config)
        )


@dataclass(frozen=True)
class Conclusion:
    """What can be said of `other` against `base`."""

    base: str
    other: str
    verdict: Verdict
    sentence: str
    causes: tuple[Cause, ...]
    incomparable: str = ""
    """Why step curves of the two are not comparable; "" if they are."""
    remark: str = ""


def causes(differences: Sequence[Difference]) -> tuple[Cause, ...]:
    """The causes among differences that can change an outcome, without the seed."""
    deciding = [
        one
        for one in differences
        if one.effect in (Effect.measured, Effect.training) and one.name != "seed"
    ]
    changed = {one.name for one in deciding}
    joined: dict[str, list[Difference]] = {}
    for one in deciding:
        joined.setdefault(_cause(one, changed), []).append(one)
    order = list(Effect)
    return tuple(
        Cause(
            _title(name, found),
            min((one.effect for one in found), key=order.index),
            tuple(found),
        )
        for name, found in joined.items()
    )


def conclude(base: Side, other: Side, differences: Sequence[Difference]) -> Conclusion:
    """The verdict on two sides and their differences."""
    found = causes(differences)
    seed = next((one for one in differences if one.name == "seed"), None)
    remark = ""
    if len(found) > 1:
        verdict = Verdict.confounded
        sentence = (
            f"Confounded: {len(found)} causes changed at once "
            f"({', '.join(cause.name for cause in found)}), so a difference in outcome cannot be "
            "put down to any one of them."
        )
    elif found:
        verdict = Verdict.clean
        sentence = (
            f"A clean comparison: one cause changed, {found[0].name}. "
            f"It measures {_measures(base, other, found[0])}."
        )
        remark = _task_remark(base, other, found[0])
    elif seed is not None:
        verdict = Verdict.seed
        sentence = (
            f"A repeat with another seed ({_show(seed, base)} -> {_show(seed, other)}): a "
            "difference in outcome is noise, and tells how large noise is."
        )
    elif any(one.effect is Effect.speed for one in differences):
        verdict = Verdict.speed
        sentence = (
            "The same training at another speed: outcomes are equal up to rounding and the ages "
            "of tokens."
        )
    elif differences:
        verdict = Verdict.cosmetic
        sentence = "Only places and labels differ: a difference in outcome is noise."
    else:
        verdict = Verdict.same
        sentence = "No difference: a difference in outcome is noise."
        if base.run is not None and other.run is not None:
            sentence += f" Where the two part: {command('verify', base.name, other.name)}"
    if found and seed is not None:
        sentence += (
            " The seed differs too, so the two are not paired: compare several seeds of each."
        )
    return Conclusion(
        base.label, other.label, verdict, sentence, found, incomparable(differences), remark
    )


def _cause(difference: Difference, changed: set[str]) -> str:
    name = difference.name
    if difference.group is Group.tasks:
        return _TASKS
    if difference.group is Group.weights or name.startswith("model."):
        return _MODEL
    if difference.group is Group.code:
        return _CODE
    if difference.group is Group.packages:
        return _PACKAGES
    if name.startswith("engine."):
        return _ENGINE
    for choice, parameters in _CHOICES.items():
        if choice in changed and any(
            name == prefix or name.startswith(prefix + ".") for prefix in parameters
        ):
            return choice
    return name


def _title(name: str, found: Sequence[Difference]) -> str:
    if name == _PACKAGES:
        return f"{name} ({', '.join(one.name for one in found)})"
    if name == _CODE:
        return name
    if name == _TASKS:
        return f"{name} ({', '.join(one.name for one in found)})"
    if len(found) == 1:
        return found[0].name
    if name in (_MODEL, _ENGINE):
        return f"{name} ({len(found)} differences)"
    return f"{name} with {', '.join(one.name for one in found if one.name != name)}"


def _measures(base: Side, other: Side, cause: Cause) -> str:
    first = cause.differences[0]
    train = next((one for one in cause.differences if one.name == "data.train"), None)
    if train is not None:
        return f"training on {_tasks(train, other)} in the place of {_tasks(train, base)}"
    if len(cause.differences) == 1 and cause.knobs and not isinstance(first.values, str):
        mine, theirs = _show(first, base), _show(first, other)
        return f"what {first.name} = {theirs} does in the place of {mine}"
    return f"the effect of {cause.name}"


def _tasks(difference: Difference, side: Side) -> str:
    value = difference.values.get(side.label)
    if not isinstance(value, Mapping):
        return "an unknown task set"
    count = value["num_tasks"]
    return f"{value['set']}" + (f" ({count} tasks)" if count is not None else "")


def _task_remark(base: Side, other: Side, cause: Cause) -> str:
    """That another task set is three changes in one, where it is."""
    train = next((one for one in cause.differences if one.name == "data.train"), None)
    visits = [_steps_a_visit(side) for side in (base, other)]
    if train is None or None in visits or visits[0] == visits[1]:
        return ""
    before, after = (f"every {visit:.3g} steps" for visit in visits)
    return (
        "A set of another size changes three things at once: how many tasks there are, which they "
        f"are, and how often each comes back ({before} -> {after}). Other sets of the same size, "
        "and other rollout.prompts_per_step, tell them apart."
    )


def _steps_a_visit(side: Side) -> float | None:
    steps = side.steps_a_pass
    return None if steps is None else max(1.0, steps)


def _show(difference: Difference, side: Side) -> Any:
    return show_value(difference.values.get(side.label, ABSENT))


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()


def show_value(value: Any) -> str:
    """A value as a config would write it, on one line."""
    if value is ABSENT:
        return "absent"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(show_value, value))}]"
    return " ".join(str(value).split())
