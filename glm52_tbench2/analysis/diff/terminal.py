"""A comparison as text: coloured and wrapped in a terminal, plain lines in a pipe."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...config.classes import Effect
from ...config.words import counted
from ..terminal import print_line, print_table, suited
from .causes import ABSENT, Conclusion, Verdict, show_value
from .compare import Difference, Group, listed
from .comparison import Comparison
from .experiments import Plan
from .sides import Side

STYLES = {
    Effect.measured: "bold red",
    Effect.training: "yellow",
    Effect.speed: "cyan",
    Effect.cosmetic: "bright_black",
}
TONES = {"good": "green", "bad": "red", "": ""}
_GOOD = (Verdict.same, Verdict.cosmetic, Verdict.speed, Verdict.seed, Verdict.clean)
_SIDE_BY_SIDE = 26
"""Values up to this long stand in columns; longer ones below each other."""
_NAMED = 12
"""Tasks named on a terminal; --json and --html name all."""


def show(found: Comparison, console: Console | None = None) -> None:
    """Prints the comparison."""
    console = suited(console)
    _sides(found, console)
    if found.equal:
        console.print(Text("\nNothing differs in what was run.", style="green"))
    for group in Group:
        differences = [one for one in found.differences if one.group is group]
        if differences:
            _heading(console, group.value.capitalize(), counted(len(differences), "difference"))
            for effect in Effect:
                _differences(console, [d for d in differences if d.effect is effect], found.sides)
    if found.outcomes:
        _outcomes(console, found)
    _heading(console, "Conclusion")
    for conclusion, plan in found.conclusions:
        _conclusion(console, conclusion, plan, several=len(found.conclusions) > 1)
    for note in found.notes:
        _say(console, f"Note: {note}", "bright_black")


def _sides(found: Comparison, console: Console) -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(style="bold", overflow="fold")
    grid.add_column(style="bright_black", no_wrap=True)
    grid.add_column(style="bright_black", overflow="fold")
    for side in found.sides:
        grid.add_row(side.label, Text(side.name), side.kind.value, Text(side.about))
    print_table(console, grid, 0)


def _heading(console: Console, title: str, detail: str = "") -> None:
    text = Text(f"\n{title}", style="bold")
    if detail:
        text.append(f"  {detail}", style="not bold bright_black")
    console.print(text)


def _differences(
    console: Console, differences: Sequence[Difference], sides: Sequence[Side]
) -> None:
    """The differences of one class: short values in columns, long ones below each other."""
    if not differences:
        return
    _say(console, differences[0].effect.value, STYLES[differences[0].effect])
    shown = [{side.label: _value(one, side.label) for side in sides} for one in differences]
    columns = {
        side.label: max((len(values[side.label]) for values in shown if _short(values)), default=0)
        for side in sides
    }
    names = max(len(one.name) for one in differences)
    inline = names + sum(width + 5 for width in columns.values()) + 4 <= console.width
    for one, values in zip(differences, shown, strict=True):
        title = Text(one.name.ljust(names), style="bold")
        if inline and _short(values):
            for label, text in values.items():
                title.append(f"   {label} ", style="not bold bright_black")
                title.append(text.ljust(columns[label]), style="not bold")
        title.rstrip()
        print_line(console, title, 4)
        if not (inline and _short(values)):
            for label, text in values.items():
                print_line(console, Text.assemble((f"{label} ", "bright_black"), text), 6)
        for line in (one.doc, one.detail):
            if line:
                print_line(console, Text(line, style="bright_black"), 6)
        for line in _task_lines(one):
            print_line(console, Text(line), 6)


def _short(values: Mapping[str, str]) -> bool:
    return all(len(text) <= _SIDE_BY_SIDE for text in values.values())


def _value(difference: Difference, label: str) -> str:
    """A difference's value on one side."""
    value = difference.values.get(label, ABSENT)
    if difference.group is Group.code and isinstance(value, dict):
        return code_text(value)
    if isinstance(value, dict):
        return set_text(value)
    if value is ABSENT and difference.group is not Group.config:
        return "not recorded"
    text = show_value(value)
    return text[:12] if len(text) == 64 and text.isalnum() else text


def set_text(value: dict[str, object]) -> str:
    """A task set on one line."""
    parts = [str(value["set"])]
    if value["num_tasks"] is not None:
        parts.append(f"{value['num_tasks']} tasks")
    if value["sha256"]:
        parts.append(str(value["sha256"])[:12])
    return " · ".join(parts)


def code_text(value: dict[str, str]) -> str:
    """Code on one line."""
    parts = [value["revision"][:12] or "revision unknown"]
    if value["changes"]:
        parts.append(f"changed ({value['changes']})")
    if value["source"]:
        parts.append(f"source {value['source'][:12]}")
    return " · ".join(parts)


def _task_lines(difference: Difference) -> Iterator[str]:
    for label, change in difference.tasks.items():
        if change.added or change.removed:
            yield (
                f"{label}: {counted(len(change.added), 'task')} added, {len(change.removed)} "
                f"removed, {change.kept} kept"
            )
        for sign, names in (("+", change.added), ("-", change.removed)):
            if names:
                more = len(names) - _NAMED
                rest = f" and {more} more" if more > 0 else ""
                yield f"{sign} {', '.join(names[:_NAMED])}{rest}"


def _outcomes(console: Console, found: Comparison) -> None:
    _heading(console, "Outcomes")
    labels = [run.side.label for run in found.runs]
    table = Table(box=None, padding=(0, 3, 0, 0), show_edge=False, pad_edge=False)
    table.add_column("", no_wrap=True)
    for label in labels:
        table.add_column(label, header_style="bold", overflow="fold")
    marked = False
    for row in found.outcomes:
        marked = marked or not row.comparable
        title = Text(row.title if row.comparable else f"{row.title} ≠")
        cells = [row.cells.get(label) for label in labels]
        table.add_row(
            title,
            *(Text("–") if one is None else Text(one.text, style=TONES[one.tone]) for one in cells),
        )
    print_table(console, table, 2)
    if marked:
        _say(console, "≠ measured differently on the sides: not comparable", "bright_black")


def _conclusion(console: Console, one: Conclusion, plan: Plan, several: bool) -> None:
    prefix = f"{one.other} against {one.base}: " if several else ""
    style = "green" if one.verdict in _GOOD else "bold red"
    _say(console, prefix + one.sentence, style)
    if one.incomparable:
        _say(console, one.incomparable, STYLES[Effect.measured])
    if one.remark:
        _say(console, one.remark, "")
    if plan.experiments:
        console.print()
        _say(console, f"To separate them: {asked_for(plan)}:", "")
        for run in plan.experiments:
            why = f"changes {listed(run.changes)}" if run.changes else "the base"
            print_line(console, Text(f"# {why}", style="bright_black"), 4)
            # Whole on its line, however long, so that it can be copied.
            console.print(Text(f"    {run.command}", style="bold"), soft_wrap=True)
    for lost in plan.inseparable:
        _say(console, f"Not by a command: {lost.cause}: {lost.reason}.", "yellow")


def asked_for(plan: Plan) -> str:
    """The experiments of a plan in words."""
    singles = [run for run in plan.experiments if run.changes]
    text = f"{counted(len(singles), 'run')}, each with one cause changed"
    if any(len(run.changes) > 1 for run in singles):
        text += ", or with what it needs to compose"
    if len(singles) < len(plan.experiments):
        text += ", and the base"
    return f"{text}; all on the same code and with several seeds (-m seed=1,2,3)"


def _say(console: Console, text: str, style: str) -> None:
    print_line(console, Text(text, style=style), 2)
