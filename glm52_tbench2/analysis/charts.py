"""Charts as inline SVG: lines, stacked bars, a heat table. Colours are classes of report.css.

Each chart carries its numbers in `data-chart` (JSON), from which report.js makes its tooltips.
Everything that comes from a run is escaped here.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeVar

from markupsafe import Markup, escape

WIDTH, HEIGHT = 560.0, 230.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 16.0, 12.0, 26.0
# Above this, arithmetic on an axis overflows; no metric means anything there.
_MOST = 1e100

Key = TypeVar("Key")
Points = Mapping[int, float]
"""Step -> value."""


def numbers(values: Mapping[Key, Any]) -> dict[Key, float]:
    """What of `values` is a number with which arithmetic can be done: finite, at most 1e100."""
    return {
        key: value
        for key, value in values.items()
        if isinstance(value, int | float) and abs(value) < _MOST
    }


class Style(Enum):
    line = "line"
    """A line; a point without neighbours is a dot."""
    dots = "dots"
    """Points alone."""
    marked = "marked"
    """A line through large dots, for measurements far apart."""


@dataclass(frozen=True)
class Series:
    """One curve."""

    name: str
    points: Points
    colour: int
    """1-based, a class c1 ... c8."""
    style: Style = Style.line
    bounds: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """Step -> interval, drawn as a bar at its point; NaN bounds are left out."""
    gaps: frozenset[int] = frozenset()
    """Steps whose value cannot be drawn."""
    every: int = 0
    """Steps from one measurement to the next: the line is parted where one is missing. 0: it is
    drawn across."""
    dashed: bool = False
    """Of another run."""


@dataclass(frozen=True)
class Range:
    """A shaded stretch of the y axis, for comparison."""

    low: float
    high: float
    label: str


def line_chart(
    series: Sequence[Series],
    label: str,
    *,
    log: bool = False,
    limits: tuple[float | None, float | None] = (None, None),
    reference: Range | None = None,
    marks: Mapping[int, str] | None = None,
) -> Markup | None:
    """Curves over steps; None when no value can be drawn. `marks`: steps with a line and a word.

    Values that are not finite (or above 1e100), and on a log axis those that are not positive,
    leave a gap.
    `limits` are the least the y axis reaches; `label` is read out in the place of the picture.
    """
    shown = [_drawable(one, log) for one in series]
    shown = [one for one in shown if one.points]
    if not shown:
        return None
    steps = sorted({step for one in shown for step in one.points})
    values = [v for one in shown for v in one.points.values()]
    values += [v for one in shown for pair in one.bounds.values() for v in pair]
    values += [limit for limit in limits if limit is not None]
    if reference and min(values) <= reference.high * 3 and max(values) >= reference.low / 3:
        values += [reference.low, reference.high]
    else:
        reference = None
    x = _StepAxis(steps)
    y = _LogAxis(values) if log else _LinearAxis(values)
    parts = [*_grid(x, y)]
    if reference:
        top, bottom = y.at(reference.high), y.at(reference.low)
        parts.append(
            f'<rect class="range" x="{LEFT}" y="{top:.1f}" width="{WIDTH - LEFT - RIGHT}" '
            f'height="{max(bottom - top, 1):.1f}"><title>{escape(reference.label)}</title></rect>'
        )
    for step, text in (marks or {}).items():
        if steps[0] <= step <= steps[-1]:
            parts.append(
                f'<line class="mark" x1="{x.at(step):.1f}" x2="{x.at(step):.1f}" y1="{TOP}" '
                f'y2="{HEIGHT - BOTTOM}"><title>{escape(text)}</title></line>'
            )
    for one in shown:
        parts += _curve(one, x, y)
    data = {
        "steps": steps,
        "x": [round(x.at(step), 1) for step in steps],
        "series": [
            {
                "name": one.name,
                "colour": one.colour,
                "values": [_shown(one, step) for step in steps],
            }
            for one in shown
        ],
    }
    return _svg("lines", WIDTH, HEIGHT, parts, label, data)


@dataclass(frozen=True)
class Layer:
    """One layer of stacked bars; values are >= 0 and a missing one counts as 0."""

    name: str
    points: Points
    colour: int
    """1-based, a class c1 ... c8."""


def stacked_bars(layers: Sequence[Layer], label: str, unit: str = "") -> Markup | None:
    """Bars over steps, each layer on top of the ones before; None without values."""
    steps = sorted({step for layer in layers for step in layer.points})
    totals = [sum(max(0.0, layer.points.get(step, 0.0)) for layer in layers) for step in steps]
    if not steps or max(totals) <= 0:
        return None
    x, y = _StepAxis(steps, margin=0.5), _LinearAxis([0.0, *totals])
    crowded = x.unit < 8  # then gaps would be all one sees
    width = x.unit + 0.2 if crowded else min(28.0, x.unit * 0.84)
    parts = [*_grid(x, y)]
    floors = dict.fromkeys(steps, 0.0)
    for layer in layers:
        for step in steps:
            value = max(0.0, layer.points.get(step, 0.0))
            top, bottom = y.at(floors[step] + value), y.at(floors[step])
            floors[step] += value
            if bottom - top > 0.05:
                left = x.at(step) - width / 2
                parts.append(
                    f'<rect class="bar c{layer.colour}" x="{left:.1f}" y="{top:.1f}" '
                    f'width="{width:.1f}" height="{bottom - top:.1f}"/>'
                )
    data = {
        "steps": steps,
        "x": [round(x.at(step), 1) for step in steps],
        "series": [
            {
                "name": layer.name,
                "colour": layer.colour,
                "values": [
                    f"{_number(layer.points[step])}{unit}" if layer.points.get(step) else ""
                    for step in steps
                ],
            }
            for layer in layers
        ],
    }
    return _svg("bars crowded" if crowded else "bars", WIDTH, HEIGHT, parts, label, data)


@dataclass(frozen=True)
class Cell:
    """One visit of a task."""

    value: float
    """Mean reward, 0 to 1."""
    mark: float
    """Share of truncated samples, 0 to 1, drawn as a bar along the bottom."""
    text: str
    """Shown on hovering."""


def heat_table(
    rows: Sequence[tuple[str, Mapping[int, Cell]]], steps: Sequence[int], label: str
) -> Markup | None:
    """A row a task, a column a step; None without cells."""
    if not rows or not steps:
        return None
    name_width = 8.0 + 6.1 * min(34, max(len(name) for name, _ in rows))
    columns = steps[-1] - steps[0] + 1
    cell = max(3.0, min(26.0, (1080.0 - name_width) / columns))
    height, gap, top = 15.0, 1.0, 18.0
    width = name_width + cell * columns + 4
    parts = []
    for tick in _step_ticks(steps[0], steps[-1], max(2, int(cell * columns / 48))):
        at = name_width + (tick - steps[0] + 0.5) * cell
        parts.append(f'<text class="tick" x="{at:.1f}" y="11" text-anchor="middle">{tick}</text>')
    for number, (name, cells) in enumerate(rows):
        y = top + number * height
        short = name if len(name) <= 34 else name[:33] + "…"
        parts.append(
            f'<text class="row" x="{name_width - 8:.1f}" y="{y + 11:.1f}" text-anchor="end">'
            f"{escape(short)}<title>{escape(name)}</title></text>"
        )
        parts.append(
            f'<line class="rule" x1="{name_width:.1f}" x2="{width - 4:.1f}" '
            f'y1="{y + height - gap / 2:.1f}" y2="{y + height - gap / 2:.1f}"/>'
        )
        for step, found in cells.items():
            x = name_width + (step - steps[0]) * cell
            inner = cell - min(gap, cell / 5)
            parts.append(
                f'<g class="cell" data-tip="{escape(found.text)}">'
                f'<rect class="heat" style="--v:{_unit(found.value):.3f}" x="{x:.1f}" y="{y:.1f}" '
                f'width="{inner:.1f}" height="{height - gap:.1f}"/>'
                + (
                    f'<rect class="cut" x="{x:.1f}" y="{y + height - gap - 3:.1f}" '
                    f'width="{inner * _unit(found.mark):.1f}" height="3"/>'
                    if found.mark > 0
                    else ""
                )
                + "</g>"
            )
    return _svg("heat", width, top + height * len(rows) + 2, parts, label, None)


def _unit(value: float) -> float:
    return min(1.0, max(0.0, value)) if math.isfinite(value) else 0.0


def _drawable(series: Series, log: bool) -> Series:
    def good(value: float) -> bool:
        return abs(value) < _MOST and (value > 1 / _MOST or not log)

    points = {step: value for step, value in numbers(series.points).items() if good(value)}
    bounds = {s: b for s, b in series.bounds.items() if s in points and all(map(good, b))}
    gaps = frozenset(series.points.keys() - points.keys())
    return replace(series, points=points, bounds=bounds, gaps=gaps)


def _shown(series: Series, step: int) -> str:
    if step not in series.points:
        return ""
    text = _number(series.points[step])
    if step in series.bounds:
        low, high = series.bounds[step]
        text += f" [{_number(low)}, {_number(high)}]"
    return text


def _number(value: float) -> str:
    if value and (abs(value) < 0.001 or abs(value) >= 1e5):
        return f"{value:.2e}"
    return f"{value:.4g}"


class _StepAxis:
    def __init__(self, steps: Sequence[int], margin: float = 0.0) -> None:
        self.first, self.last = steps[0], steps[-1]
        self.margin = margin if self.last > self.first else 1.0
        self.unit = (WIDTH - LEFT - RIGHT) / (self.last - self.first + 2 * self.margin)
        self.ticks = _step_ticks(self.first, self.last, 8)

    def at(self, step: float) -> float:
        return LEFT + (step - self.first + self.margin) * self.unit


class _LinearAxis:
    def __init__(self, values: Sequence[float]) -> None:
        low, high = min(values), max(values)
        if high - low < 1e-12 * max(1.0, abs(high)):
            pad = abs(high) * 0.1 or 1.0
            low, high = low - pad, high + pad
        unit = _nice((high - low) / 4)
        first, last = math.floor(low / unit + 1e-9), math.ceil(high / unit - 1e-9)
        self.low, self.high = first * unit, last * unit
        decimals = next((d for d in range(5) if abs(round(unit, d) - unit) < unit / 100), None)
        self.ticks = {
            k * unit: f"{k * unit:.1e}" if decimals is None else f"{k * unit:.{decimals}f}"
            for k in range(first, last + 1)
        }

    def at(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


class _LogAxis:
    def __init__(self, values: Sequence[float]) -> None:
        first = math.floor(math.log10(min(values)) + 1e-9)
        last = max(first + 1, math.ceil(math.log10(max(values)) - 1e-9))
        self.first, self.last = first, last
        every = math.ceil((last - first) / 6)
        self.ticks = {10.0**k: _power(k) for k in range(first, last + 1, every)}

    def at(self, value: float) -> float:
        share = (math.log10(value) - self.first) / (self.last - self.first)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _power(exponent: int) -> str:
    if -3 <= exponent <= 4:
        return f"{10.0**exponent:g}"
    digits = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    return "10" + str(exponent).translate(digits)


def _nice(unit: float) -> float:
    """The smallest of 1, 2, 2.5, 5 x 10^k that is at least `unit`."""
    power = 10.0 ** math.floor(math.log10(unit))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= unit * (1 - 1e-9))


def _step_ticks(first: int, last: int, most: int) -> list[int]:
    """At most about `most` round steps from first to last."""
    unit = max(1, round(_nice(max(1.0, (last - first) / most))))
    return list(range(math.ceil(first / unit) * unit, last + 1, unit)) or [first]


def _grid(x: _StepAxis, y: _LinearAxis | _LogAxis) -> list[str]:
    parts = []
    for value, text in y.ticks.items():
        at = y.at(value)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text class="tick" x="{LEFT - 6}" y="{at + 3.5:.1f}" text-anchor="end">{text}</text>'
        )
    parts.append(
        f'<text class="tick" x="{LEFT - 14}" y="{HEIGHT - 8}" text-anchor="end">step</text>'
    )
    for step in x.ticks:
        parts.append(
            f'<text class="tick" x="{x.at(step):.1f}" y="{HEIGHT - 8}" '
            f'text-anchor="middle">{step}</text>'
        )
    return parts


def _curve(series: Series, x: _StepAxis, y: _LinearAxis | _LogAxis) -> list[str]:
    colour = f"c{series.colour}{' dashed' if series.dashed else ''}"
    parts = []
    for step, (low, high) in series.bounds.items():
        parts.append(
            f'<line class="error {colour}" x1="{x.at(step):.1f}" x2="{x.at(step):.1f}" '
            f'y1="{y.at(low):.1f}" y2="{y.at(high):.1f}"/>'
        )
    runs = _runs(series)
    if series.style is Style.line:
        dots = [step for run in runs if len(run) == 1 for step in run]
    else:
        dots = list(series.points)
    for run in runs if series.style is not Style.dots else []:
        if len(run) > 1:
            places = (f"{x.at(step):.1f} {y.at(series.points[step]):.1f}" for step in run)
            parts.append(f'<path class="line {colour}" d="M{"L".join(places)}"/>')
    large = series.style is Style.marked or len(series.points) == 1
    radius = 4.0 if large else 2.4
    parts += [
        f'<circle class="dot {colour}" cx="{x.at(step):.1f}" cy="{y.at(series.points[step]):.1f}" '
        f'r="{radius}"/>'
        for step in dots
    ]
    return parts


def _runs(series: Series) -> list[list[int]]:
    """The steps of the curve, parted where a value is missing or cannot be drawn."""
    runs: list[list[int]] = [[]]
    for step in sorted({*series.points, *series.gaps}):
        if series.every and runs[-1] and step - runs[-1][-1] > series.every:
            runs.append([])
        if step in series.gaps:
            runs.append([])
        else:
            runs[-1].append(step)
    return [run for run in runs if run]


def _svg(
    kind: str, width: float, height: float, parts: Sequence[str], label: str, data: object
) -> Markup:
    numbers = "" if data is None else f' data-chart="{escape(json.dumps(data))}"'
    return Markup(
        f'<svg class="chart {kind}" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'style="--width:{width:.0f}px" role="img" '
        f'aria-label="{escape(label)}"{numbers}>{"".join(parts)}</svg>'
    )
