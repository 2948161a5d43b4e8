"""A whole comparison: sides, differences, conclusions, outcomes, and what cannot be said."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .causes import Conclusion, Verdict, conclude
from .compare import Difference, compare, held_out_comparable, incomparable
from .experiments import Plan, separate
from .sides import Kind, Side, read_sides

JSON_VERSION = 1


@dataclass(frozen=True)
class Comparison:
    """Everything that is shown; the base is the first side."""

    sides: list[Side]
    differences: list[Difference]
    incomparable: str
    """Why step curves of all sides are not comparable; "" if they are."""
    conclusions: list[tuple[Conclusion, Plan]]
    """One for each side against the base."""
    runs: list[Any]
    """A Reading for each side that is a run; outcomes.py is imported only where there is one."""
    among_runs: list[Difference]
    """What differs between those."""
    outcomes: list[Any]
    notes: list[str]

    @property
    def equal(self) -> bool:
        """Nothing differs in what was run."""
        return not self.differences


def compared(names: Sequence[str]) -> Comparison:
    """Compares the sides named on a command line. Raises UserError as read_sides does."""
    sides = read_sides(names)
    differences = compare(sides)
    runs, found, among_runs = [], [], []
    if any(side.kind is Kind.run for side in sides):
        from .outcomes import outcomes, read_runs

        runs = read_runs(sides)
        among_runs = compare([run.side for run in runs])
        found = outcomes(runs, among_runs)
    return Comparison(
        sides,
        differences,
        incomparable(differences),
        [_concluded(sides[0], other) for other in sides[1:]],
        runs,
        among_runs,
        found,
        [*_unsaid(sides), *(f"{run.side.label}: {text}" for run in runs for text in _warned(run))],
    )


def as_json(found: Comparison) -> dict[str, Any]:
    """The comparison under stable names; docs/diff.md tells what each means."""
    return {
        "version": JSON_VERSION,
        "equal": found.equal,
        "sides": [
            {
                "label": side.label,
                "name": side.name,
                "kind": side.kind.value,
                "about": side.about,
            }
            for side in found.sides
        ],
        "differences": [
            {
                "group": one.group.value,
                "name": one.name,
                "class": one.effect.value,
                "doc": one.doc,
                "values": dict(one.values),
                "tasks": {
                    label: {
                        "added": list(change.added),
                        "removed": list(change.removed),
                        "kept": change.kept,
                    }
                    for label, change in one.tasks.items()
                },
                "detail": one.detail,
            }
            for one in found.differences
        ],
        "comparable": {
            "curves": not found.incomparable,
            "held_out": held_out_comparable(found.differences),
            "reason": found.incomparable,
        },
        "conclusions": [
            {
                "base": one.base,
                "other": one.other,
                "verdict": one.verdict.value,
                "sentence": one.sentence,
                "incomparable": one.incomparable,
                "remark": one.remark,
                "causes": [
                    {
                        "name": cause.name,
                        "class": cause.effect.value,
                        "differences": [difference.name for difference in cause.differences],
                    }
                    for cause in one.causes
                ],
                "experiments": [
                    {"command": run.command, "changes": list(run.changes)}
                    for run in plan.experiments
                ],
                "inseparable": [
                    {"cause": lost.cause, "reason": lost.reason} for lost in plan.inseparable
                ],
            }
            for one, plan in found.conclusions
        ],
        "outcomes": [
            {
                "name": row.key,
                "comparable": row.comparable,
                "values": {
                    label: {"text": cell.text.replace("\n", "; "), **cell.value}
                    for label, cell in row.cells.items()
                },
            }
            for row in found.outcomes
        ],
        "notes": found.notes,
    }


def _concluded(base: Side, other: Side) -> tuple[Conclusion, Plan]:
    differences = compare([base, other])
    conclusion = conclude(base, other, differences)
    if conclusion.verdict is not Verdict.confounded:
        return conclusion, Plan((), ())
    return conclusion, separate(base, other, differences, conclusion.causes)


def _unsaid(sides: Sequence[Side]) -> list[str]:
    """What the comparison cannot tell, and why."""
    composed = [side for side in sides if side.kind is not Kind.run]
    notes = []
    if len(composed) == len(sides):
        notes.append(
            "All sides are composed from this checkout: code, packages and starting weights of "
            "one path are the same by construction. Those of a published run are not recorded "
            "here, and may be further causes."
        )
    elif composed:
        labels = ", ".join(side.label for side in composed)
        notes.append(
            f"{labels} would run with this checkout's code, packages and files; runs were made "
            "with those that their identity records."
        )
    for side in sides:
        if side.kind is Kind.run:
            missing = [
                name
                for name, fact in (
                    ("code", side.code and (side.code.source or side.code.revision)),
                    ("packages", side.packages),
                    ("starting weights", side.weights),
                )
                if not fact
            ]
            if missing and not side.notes:
                notes.append(f"{side.label}: its {', '.join(missing)} are not recorded.")
        notes += [f"{side.label}: {note}." for note in side.notes]
        unknown = [facts.name for facts in side.sets.values() if facts.ids is None]
        if unknown:
            notes.append(f"{side.label}: the tasks of {' and '.join(unknown)} are not known.")
    return notes


def _warned(run: Any) -> list[str]:
    return list(run.files.warnings)
