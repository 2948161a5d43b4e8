"""What differs between sides, each difference with its class."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ...config.classes import LABEL, Effect, judge
from ...config.docs import knob_docs
from ...config.paths import ROOT
from .sides import SET_KNOBS, SetFacts, Side

_NAMED = 6
"""Files or tasks named in one difference; more are counted."""


class Group(StrEnum):
    """Parts of a comparison, in the order they are shown."""

    tasks = "task sets"
    weights = "starting weights"
    config = "config"
    code = "code"
    packages = "packages"
    machine = "machine"


@dataclass(frozen=True)
class SetChange:
    """What a side's task set has that the base's has not, and the other way round."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    kept: int


@dataclass(frozen=True)
class Difference:
    """One thing in which the sides differ."""

    group: Group
    name: str
    """The knob, or what else differs."""
    effect: Effect
    values: Mapping[str, Any]
    """Label -> plain value; a side that has none is left out."""
    doc: str = ""
    why: str = ""
    """Of what is measured: what is no longer the same thing."""
    held_out: bool = False
    """Whether held-out evaluations measure something else too."""
    tasks: Mapping[str, SetChange] = field(default_factory=dict)
    """Label -> change against the base, of a task set whose ids are known."""
    detail: str = ""


def compare(sides: Sequence[Side]) -> list[Difference]:
    """Every difference between the sides, by group. The base is the first."""
    found = [
        *_task_sets(sides),
        *_weights(sides),
        *_config(sides),
        *_code(sides),
        *_packages(sides),
        *_machine(sides),
    ]
    order = list(Group)
    return sorted(found, key=lambda one: order.index(one.group))


def incomparable(differences: Sequence[Difference]) -> str:
    """Why step curves are not comparable, as a sentence; "" if they are."""
    causes = [one for one in differences if one.effect is Effect.measured]
    if not causes:
        return ""
    reasons = ", ".join(f"{one.why} ({one.name})" for one in causes)
    spoiled = [one.name for one in causes if one.held_out]
    if spoiled:
        rest = f"Nor are held-out rewards, because of {listed(spoiled)}."
    else:
        rest = "Held-out rewards are comparable: the same tasks under the same limits."
    return f"Step curves are not comparable: {reasons}. {rest}"


def held_out_comparable(differences: Sequence[Difference]) -> bool:
    """Whether held-out evaluations of the sides measure the same."""
    return not any(one.held_out for one in differences)


def _task_sets(sides: Sequence[Side]) -> list[Difference]:
    found = []
    for knob in SET_KNOBS:
        sets = {side.label: side.sets[knob] for side in sides if knob in side.sets}
        if len({_set_key(one, sets) for one in sets.values()}) + (len(sets) < len(sides)) > 1:
            same = len({one.sha256 for one in sets.values()}) == 1 and None not in (
                one.sha256 for one in sets.values()
            )
            found.append(
                _knob(
                    knob,
                    Group.tasks,
                    {label: _set_value(one) for label, one in sets.items()},
                    cosmetic=same and len(sets) == len(sides),
                    detail="the same tasks under another name" if same else "",
                    tasks=_set_changes(sides[0], sets),
                )
            )
        contents = {label: one.contents for label, one in sets.items() if one.contents}
        hashes = {sets[label].sha256 for label in contents}
        if len(set(contents.values())) > 1 and len(hashes) == 1:
            found.append(
                Difference(
                    Group.tasks,
                    f"files of {knob}",
                    Effect.measured,
                    contents,
                    doc="A hash over the files of the set's tasks.",
                    why="the tasks of the same names have other files",
                    held_out=knob == "data.eval",
                    detail=_changed_files(
                        {label: one.files for label, one in sets.items() if one.files}
                    ),
                )
            )
    return found


def _set_key(facts: SetFacts, sets: Mapping[str, SetFacts]) -> tuple[str, str | None]:
    """What tells sets apart; a hash only where every side has one."""
    known = all(one.sha256 for one in sets.values())
    return facts.name, facts.sha256 if known else None


def _set_value(facts: SetFacts) -> dict[str, Any]:
    return {
        "set": facts.name,
        "num_tasks": None if facts.ids is None else len(facts.ids),
        "sha256": facts.sha256,
    }


def _set_changes(base: Side, sets: Mapping[str, SetFacts]) -> dict[str, SetChange]:
    first = sets.get(base.label)
    if first is None or first.ids is None:
        return {}
    mine = set(first.ids)
    return {
        label: SetChange(
            tuple(sorted(set(one.ids) - mine)),
            tuple(sorted(mine - set(one.ids))),
            len(mine & set(one.ids)),
        )
        for label, one in sets.items()
        if label != base.label and one.ids is not None
    }


def _weights(sides: Sequence[Side]) -> list[Difference]:
    values = {side.label: side.weights for side in sides if side.weights}
    if len(set(values.values())) < 2:
        return []
    doc = "A hash over the files of model.path."
    return [Difference(Group.weights, "starting weights", Effect.training, values, doc)]


def _config(sides: Sequence[Side]) -> list[Difference]:
    places = {name: place for place, name in enumerate(knob_docs())}
    names = sorted(
        {name for side in sides for name in side.knobs},
        key=lambda name: (places.get(name, len(places)), name),
    )
    moved = {"model.path": _same_weights(sides), "data.tasks_dir": _same_files(sides)}
    found = []
    for name in names:
        values = {side.label: side.knobs[name] for side in sides if name in side.knobs}
        keys = {repr(_key(value)) for value in values.values()}
        if name == LABEL or name in SET_KNOBS or len(keys) + (len(values) < len(sides)) < 2:
            continue
        same = moved.get(name, False)
        found.append(
            _knob(
                name,
                Group.tasks if name.startswith("data.") else Group.config,
                values,
                cosmetic=same,
                detail="the same files in another place" if same else "",
            )
        )
    return found


def _knob(
    name: str,
    group: Group,
    values: Mapping[str, Any],
    cosmetic: bool = False,
    detail: str = "",
    tasks: Mapping[str, SetChange] | None = None,
) -> Difference:
    judgement = judge(name)
    effect = Effect.cosmetic if cosmetic else judgement.effect
    measured = effect is Effect.measured
    docs, documented = knob_docs(), name
    while documented and documented not in docs:
        documented = documented.rpartition(".")[0]
    return Difference(
        group,
        name,
        effect,
        values,
        docs.get(documented, ""),
        judgement.why if measured else "",
        measured and judgement.held_out,
        tasks or {},
        detail,
    )


def _key(value: Any) -> Any:
    """Equal for equal values, unlike == for True and 1; a whole float equals its integer."""
    if isinstance(value, list):
        return [_key(one) for one in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _same_weights(sides: Sequence[Side]) -> bool:
    return None not in {side.weights for side in sides} and len({s.weights for s in sides}) == 1


def _same_files(sides: Sequence[Side]) -> bool:
    contents = {
        (knob, side.sets[knob].contents if knob in side.sets else None)
        for side in sides
        for knob in SET_KNOBS
    }
    return len(contents) == len(SET_KNOBS) and all(found for _, found in contents)


def _code(sides: Sequence[Side]) -> list[Difference]:
    codes = {side.label: side.code for side in sides if side.code}
    if len(set(codes.values())) < 2:
        return []
    values = {
        label: {"revision": one.revision, "changes": one.changes, "source": one.source}
        for label, one in codes.items()
    }
    sources = {one.source for one in codes.values()}
    same = len(sources) == 1 and "" not in sources
    doc = "Revision of the code, its uncommitted changes, and a hash of what decides results."
    if same:
        detail = "the files that decide results are the same"
    else:
        files = {label: dict(one.files) for label, one in codes.items() if one.files}
        detail = _told([_changed_files(files), _between(list(codes.items()))])
    effect = Effect.cosmetic if same else Effect.training
    return [Difference(Group.code, "code", effect, values, doc, detail=detail)]


def _changed_files(files: Mapping[str, Mapping[str, str]]) -> str:
    """What each side changed, added or removed against the first."""
    if not files:
        return ""
    (_, mine), *others = files.items()
    parts = []
    for label, theirs in others:
        kinds = {
            "changed": [name for name in mine if mine[name] != theirs.get(name, mine[name])],
            "added": [name for name in theirs if name not in mine],
            "removed": [name for name in mine if name not in theirs],
        }
        parts += [
            f"{kind} in {label}: {', '.join(names)}" for kind, names in kinds.items() if names
        ]
    return _told(parts)


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _told(parts: Sequence[str]) -> str:
    return "; ".join(part for part in parts if part)


def _between(codes: Sequence[tuple[str, Any]]) -> str:
    """How far apart two revisions are, where this repository knows both."""
    (base, mine), *others = codes
    parts = []
    for label, other in others:
        if not mine.revision or not other.revision or mine.revision == other.revision:
            continue
        pair = f"{mine.revision}...{other.revision}"
        command = ["git", "-C", str(ROOT), "rev-list", "--left-right", "--count", pair, "--"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            behind, ahead = done.stdout.split()
            apart = [f"{ahead} commits after {base}"] if ahead != "0" else []
            apart += [f"{behind} commits before {base}"] if behind != "0" else []
            parts.append(
                f"{label} is {' and '.join(apart)}: "
                f"git diff {mine.revision[:12]} {other.revision[:12]} -- glm52_tbench2 conf"
            )
    return _told(parts)


def _packages(sides: Sequence[Side]) -> list[Difference]:
    known = {side.label: side.packages for side in sides if side.packages is not None}
    return _facts(known, Group.packages, Effect.training)


def _machine(sides: Sequence[Side]) -> list[Difference]:
    known = {side.label: side.machine for side in sides if side.machine is not None}
    return _facts(known, Group.machine, Effect.speed)


def _facts(
    known: Mapping[str, Mapping[str, str]], group: Group, effect: Effect
) -> list[Difference]:
    """Of facts by side and name, those that the sides that know them do not share."""
    names = {name for facts in known.values() for name in facts}
    found = []
    for name in sorted(names):
        values = {label: one[name] for label, one in known.items() if name in one}
        if len(set(values.values())) > 1:
            found.append(Difference(group, name, effect, values))
    return found


def listed(names: Sequence[str]) -> str:
    """a, b and c."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"
