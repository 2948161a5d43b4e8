"""A comparison as a page: one self-contained file in the look of a run's report."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ...config.classes import Effect
from ...config.errors import UserError
from ...config.files import atomic_write_bytes
from ..charts import Series, Style, line_chart
from ..report import assets, template
from .causes import ABSENT, Verdict, show_value
from .compare import Difference, Group, held_out_comparable, incomparable, listed
from .comparison import Comparison
from .terminal import asked_for, code_text, set_text

_CHIPS = {
    Effect.measured: "measured",
    Effect.training: "training",
    Effect.speed: "speed",
    Effect.cosmetic: "cosmetic",
}
_PLAIN_VERDICTS = (Verdict.same, Verdict.cosmetic, Verdict.speed, Verdict.seed, Verdict.clean)


@dataclass(frozen=True)
class Plot:
    """One chart with its words."""

    title: str
    hint: str
    chart: Markup
    legend: list[tuple[int, str]]


def write_page(found: Comparison, path: Path) -> None:
    """Writes the page to `path`. Raises UserError when it cannot be written."""
    try:
        atomic_write_bytes(path, render(found).encode())
    except OSError as error:
        raise UserError(
            f"The page cannot be written to {path}: {error.strerror}; write --html FILE in a "
            "folder you may write to."
        ) from error


def render(found: Comparison) -> str:
    """The page."""
    shared = assets()
    own = (Path(__file__).parents[1] / "page" / "diff.css").read_text()
    return template("diff.html.j2").render(
        **{**shared, "css": Markup(shared["css"] + own)},
        written=time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        title=" · ".join(_short(side.name) for side in found.sides),
        found=found,
        groups=[
            (group, [one for one in found.differences if one.group is group])
            for group in Group
            if any(one.group is group for one in found.differences)
        ],
        chips=_CHIPS,
        counts=[
            (effect, count)
            for effect in Effect
            if (count := sum(one.effect is effect for one in found.differences))
        ],
        value=_value,
        plain=_PLAIN_VERDICTS,
        asked_for=asked_for,
        listed=listed,
        plots=_plots(found),
    )


def _short(name: str) -> str:
    return Path(name).name if "/" in name and "=" not in name else name


def _value(difference: Difference, label: str) -> str:
    value = difference.values.get(label, ABSENT)
    if isinstance(value, dict):
        return code_text(value) if difference.group is Group.code else set_text(value)
    if value is ABSENT and difference.group is not Group.config:
        return "not recorded"
    return value if isinstance(value, str) else show_value(value)


def _plots(found: Comparison) -> list[Plot]:
    """The curves; on one axis only where the sides measure the same."""
    if not found.runs:
        return []
    from .outcomes import HELD_OUT, KL, REWARD, TRUNCATED

    plots: list[Plot] = []
    for title, hint, metric, log, style in (
        ("Training reward", "Mean verdict of the batch.", REWARD, False, Style.line),
        ("Held-out reward", "Mean over held-out samples.", HELD_OUT, False, Style.marked),
        ("train_rollout_kl", "Log axis.", KL, True, Style.line),
        ("Truncated share", "Samples cut by a token limit.", TRUNCATED, False, Style.line),
    ):
        same = (
            held_out_comparable(found.among_runs)
            if metric == HELD_OUT
            else not incomparable(found.among_runs)
        )
        plots += _plot(found.runs, title, hint, metric, log, style, same)
    return plots


def _plot(
    runs: Sequence[Any], title: str, hint: str, metric: str, log: bool, style: Style, same: bool
) -> list[Plot]:
    from ..run_files import definitions_differ

    refused = definitions_differ([run.files for run in runs], metric)
    apart = refused is not None or not same
    drawn = [
        Series(
            f"{run.side.label}  {_short(run.side.name)}", run.series(metric), 1 + number % 8, style
        )
        for number, run in enumerate(runs)
    ]
    values = [value for one in drawn for value in one.points.values()]
    positive = [value for value in values if value > 0] if log else [0.0, *values]
    limits = (min(positive, default=None), max(positive, default=None))
    plots = []
    for shown in [[one] for one in drawn] if apart else [drawn]:
        chart = line_chart(shown, f"{title} by step", log=log, limits=limits)
        if chart is not None:
            names = [(one.colour, one.name) for one in shown if one.points]
            why = f" {refused}." if refused else (" Measured differently: apart." if apart else "")
            plots.append(Plot(title, hint + why, chart, names))
    return plots
