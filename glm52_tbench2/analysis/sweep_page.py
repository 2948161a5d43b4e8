"""A sweep for a person: SWEEP/sweep.html, one self-contained file, and the table on a terminal."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from rich import box
from rich.console import Console
from rich.table import Table as TerminalTable
from rich.text import Text

from ..config.files import atomic_write_bytes
from .charts import Points, Series, Style, line_chart
from .facts import window
from .figures import PUBLISHED_KL, Figure
from .report import REPORT_FILE, assets, template
from .stats import interval_over_runs, moving_mean
from .sweep_table import COLUMNS, SEED, Cell, Column, Outcome, Row, Table

PAGE_FILE = "sweep.html"
_MOST_CURVES = 8
"""As many as there are colours that can be told apart."""
_CHANGE = next(column for column in COLUMNS if column.key == "held_out_change")
_TONES = {
    "finished": "green",
    "running": "cyan",
    "failed": "red",
    "stopped": "yellow",
    "missing": "red",
    "waiting": "dim",
}


@dataclass(frozen=True)
class Bar:
    """A change and its interval as shares, 0 to 1, of an axis that is the same for all rows."""

    at: float
    low: float
    high: float
    zero: float
    tone: str
    """up, down or unclear: whether the interval holds 0."""


@dataclass(frozen=True)
class Line:
    """A row of the page's table."""

    row: Row
    link: str | None
    """To the run's report."""
    numbers: list[str]
    intervals: list[str]
    refused: list[bool]
    bar: Bar | None


def write_page(table: Table) -> Path:
    """Writes SWEEP/sweep.html and returns its path."""
    path = table.sweep.path / PAGE_FILE
    atomic_write_bytes(path, render(table).encode())
    return path


def render(table: Table) -> str:
    """The page."""
    counts = {status: 0 for status in _TONES}
    for row in table.rows:
        counts[row.status] += 1
    rows = [*table.groups, *table.rows]
    return template("sweep.html.j2").render(
        table=table,
        name=table.sweep.path.name,
        written=time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        counts={status: count for status, count in counts.items() if count},
        state="finished" if counts["finished"] == len(table.rows) else "unfinished",
        group_keys=[key for key in table.varies if key != SEED],
        columns=COLUMNS,
        groups=[_line(row, rows) for row in table.groups],
        runs=[_line(row, rows) for row in table.rows],
        figures=figures(table),
        too_many=len(_groups(table)) > _MOST_CURVES,
        **assets(),
    )


def terminal(table: Table, width: int | None) -> TerminalTable:
    """The table for a terminal, groups first; columns that do not fit `width` are left out."""
    console = Console(width=10_000)
    for count in range(len(COLUMNS), 2, -1):
        shown = _terminal(table, COLUMNS[:count])
        if width is None or console.measure(shown).maximum <= width:
            break
    return shown


def _terminal(table: Table, columns: Sequence[Column]) -> TerminalTable:
    shown = TerminalTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for key in table.varies:
        shown.add_column(key, no_wrap=True)
    shown.add_column("status", no_wrap=True)
    for column in columns:
        shown.add_column(column.short, justify="right", no_wrap=True)
    for row in table.groups:
        values = [row.values.get(key, "all") for key in table.varies]
        shown.add_row(*values, row.status, *_cells(row, columns), style="bold")
    if table.groups:
        shown.add_section()
    for row in table.rows:
        values = [row.values.get(key, "") for key in table.varies]
        status = Text(row.status, _TONES[row.status])
        shown.add_row(*values, status, *_cells(row, columns))
    return shown


def _cells(row: Row, columns: Sequence[Column]) -> list[str]:
    cells = [row.cells[column.key] for column in columns]
    return [
        f"{cell.text(column)} {_interval(row, column) if column is _CHANGE else ''}".rstrip()
        for cell, column in zip(cells, columns, strict=True)
    ]


def _interval(row: Row, column: Column) -> str:
    """A cell's interval; of a group that is a single run, why there is none."""
    cell = row.cells[column.key]
    if row.path is None and row.runs == 1 and cell.known:
        return "(one seed)"
    return cell.interval_text(column)


def _line(row: Row, rows: Sequence[Row]) -> Line:
    report = row.path / REPORT_FILE if row.path else None
    return Line(
        row=row,
        link=f"{quote(row.name)}/{REPORT_FILE}" if report and report.exists() else None,
        numbers=[row.cells[column.key].text(column) for column in COLUMNS],
        intervals=["" if c.key == "hours" else _interval(row, c) for c in COLUMNS],
        refused=[bool(row.cells[column.key].refused) for column in COLUMNS],
        bar=_bar(row.cells[_CHANGE.key], [one.cells[_CHANGE.key] for one in rows]),
    )


def _bar(cell: Cell, cells: Sequence[Cell]) -> Bar | None:
    """The change on an axis that holds 0 and every row's change with its interval."""
    if not cell.known:
        return None
    ends = [v for c in cells for v in (c.value, c.low, c.high) if not math.isnan(v)]
    first, last = min(0.0, *ends), max(0.0, *ends)
    width = (last - first) or 1.0

    def place(value: float) -> float:
        return (value - first) / width

    low, high = (cell.value if math.isnan(end) else end for end in (cell.low, cell.high))
    certain = not math.isnan(cell.low)
    tone = "up" if certain and low > 0 else "down" if certain and high < 0 else "unclear"
    return Bar(place(cell.value), place(low), place(high), place(0.0), tone)


# --- curves --------------------------------------------------------------------------------------


def _held_out(one: Outcome) -> Points:
    found = {step: one.facts.held_out(step) for step in one.facts.evals}
    return {step: interval.mean for step, interval in found.items() if interval}


def _smooth_reward(one: Outcome) -> Points:
    rewards = one.facts.train_reward
    smooth = moving_mean(list(rewards.values()), window(one.run, one.facts))
    return dict(zip(rewards, smooth, strict=True))


@dataclass(frozen=True)
class Curve:
    """What one figure draws of every run."""

    title: str
    hint: str
    column: str
    """Key of the table's column that shares its definition, and so its refusals."""
    points: Callable[[Outcome], Points]
    style: Style = Style.line
    log: bool = False


CURVES = (
    Curve(
        "Held-out reward",
        "Mean over held-out tasks.",
        "held_out_after",
        _held_out,
        style=Style.marked,
    ),
    Curve(
        "Training reward",
        "Mean verdict of the batch, averaged over about one pass of the tasks.",
        "train_reward",
        _smooth_reward,
    ),
    Curve(
        "train_rollout_kl",
        "Log axis; the published healthy run, 0.022 to 0.054, is shaded where it is in reach.",
        "train_rollout_kl",
        lambda one: one.run.series("trainer/train_rollout_kl"),
        log=True,
    ),
    Curve(
        "Truncated share",
        "Samples cut by the per-turn cap or the session budget.",
        "truncated",
        lambda one: one.facts.truncated,
    ),
)


def figures(table: Table) -> list[Figure]:
    """Curves by group, or by run where no seed varies; none with more than eight of them."""
    groups = _groups(table)
    return [] if len(groups) > _MOST_CURVES else [_figure(table, one, groups) for one in CURVES]


def _groups(table: Table) -> dict[str, list[Row]]:
    """Label -> the runs that its curve is a mean over."""
    keys = [key for key in table.varies if not (table.groups and key == SEED)]
    found: dict[str, list[Row]] = {}
    for row in table.rows:
        label = ", ".join(f"{key}={row.values.get(key, '')}" for key in keys) or "all runs"
        found.setdefault(label, []).append(row)
    return found


def _figure(table: Table, curve: Curve, groups: Mapping[str, list[Row]]) -> Figure:
    series = []
    for colour, (label, rows) in enumerate(groups.items(), 1):
        finished = [row for row in rows if row.status == "finished"]
        runs = [
            curve.points(table.outcomes[row.name])
            for row in finished or rows
            if row.name in table.outcomes and not row.cells[curve.column].refused
        ]
        means, bounds = _over_runs(runs)
        shown = bounds if curve.style is Style.marked else {}
        series.append(Series(label, means, colour, curve.style, shown))
    chart = line_chart(
        series,
        f"{curve.title} by step",
        log=curve.log,
        limits=(None, None) if curve.log else (0.0, None),
        reference=PUBLISHED_KL if curve.log else None,
    )
    hint = curve.hint
    if table.groups:
        marked = curve.style is Style.marked
        hint += f" Mean over seeds{', with its 95 % interval cut at 0 and 1' if marked else ''}."
    legend = [(one.colour, one.name) for one in series if one.points]
    return Figure(curve.title, hint, chart, legend)


def _over_runs(runs: Sequence[Points]) -> tuple[Points, Mapping[int, tuple[float, float]]]:
    """Mean over the runs at each step that all of them have come to, and its interval."""
    begun = [points for points in runs if points]
    if not begun:
        return {}, {}
    steps = sorted(set.intersection(*(set(points) for points in begun)))
    found = {step: interval_over_runs([points[step] for points in begun]) for step in steps}
    means = {step: one.mean for step, one in found.items() if one}
    if len(begun) == 1:
        return means, {}
    return means, {s: (max(0.0, one.low), min(1.0, one.high)) for s, one in found.items() if one}
