"""Which part of an update moved which content, as `glm52 influence` has written it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .run_files import RunFiles
from .terminal import print_line, print_table

KIND = "influence"
SCHEMA = pa.schema(
    [
        ("part", pa.string()),
        ("task", pa.string()),
        ("sign", pa.int8()),
        ("near_cap", pa.bool_()),
        ("samples", pa.int32()),
        ("content_sample", pa.string()),
        ("content_task", pa.string()),
        ("content_turn", pa.int32()),
        ("content_tokens", pa.int32()),
        ("content_near_cap", pa.bool_()),
        ("change", pa.float64()),
    ]
)
"""A row a part of the update and turn of the next step; docs/forensics.md tells the columns."""


@dataclass(frozen=True)
class Influence:
    """What a part of an update did to the content of the next step."""

    part: str
    task: str | None
    sign: int | None
    near_cap: bool | None
    samples: int | None
    near_cap_change: float | None
    """Of the mean log-prob of the tokens in turns near the per-turn cap, nats; None: no such."""
    other_change: float | None
    """Of all other generated tokens."""
    own_change: float | None
    """Of the same task's tokens; None for what is of no task, and where it is not drawn again."""
    most: str
    """The turn with the largest change of the sum of its log-probs, as SAMPLE/N, N from 0."""
    most_change: float
    """Of that turn's mean log-prob."""


def influences(run: RunFiles, step: int) -> list[Influence]:
    """The parts of a step's update, the whole first, then those that moved most; [] if it was not
    taken apart."""
    parts: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in run.rows(KIND, step, SCHEMA.names):
        parts.setdefault((row["part"], row["task"], row["sign"], row["near_cap"]), []).append(row)
    found = [_influence(rows) for rows in parts.values()]
    return sorted(found, key=lambda one: (one.part != "update", -_size(one)))


def _influence(rows: Sequence[dict[str, Any]]) -> Influence:
    one = rows[0]
    most = max(rows, key=lambda row: abs(row["change"]) * row["content_tokens"])
    return Influence(
        part=one["part"],
        task=one["task"],
        sign=one["sign"],
        near_cap=one["near_cap"],
        samples=one["samples"],
        near_cap_change=_mean([row for row in rows if row["content_near_cap"]]),
        other_change=_mean([row for row in rows if not row["content_near_cap"]]),
        own_change=_mean([row for row in rows if row["content_task"] == one["task"]]),
        most=f"{most['content_sample']}/{most['content_turn']}",
        most_change=most["change"],
    )


def _mean(rows: Sequence[dict[str, Any]]) -> float | None:
    """Over tokens."""
    if not rows:
        return None
    tokens = [row["content_tokens"] for row in rows]
    return float(np.average([row["change"] for row in rows], weights=tokens))


def _size(one: Influence) -> float:
    return max(abs(one.near_cap_change or 0.0), abs(one.other_change or 0.0))


def print_influence(
    console: Console, step: int, found: Sequence[Influence], most: int | None = None
) -> None:
    """Prints what the parts of a step's update did, those `most` that moved most."""
    shown = found[:most]
    more = f", {len(found) - len(shown)} more in --json" if len(found) > len(shown) else ""
    title = f"the update of step {step}: change of log-prob of what step {step + 1} generated"
    print_line(console, Text(f"{title}, nats a token{more}", "bold"))
    table = Table(box=None, pad_edge=False)
    table.add_column("part (samples)")
    for name in ("near cap", "elsewhere", "its task"):
        table.add_column(name, justify="right")
    table.add_column("most, sample/turn")
    for one in shown:
        numbers = (one.near_cap_change, one.other_change, one.own_change)
        cells = ["-" if number is None else f"{number:+.2g}" for number in numbers]
        table.add_row(_name(one), *cells, f"{one.most} {one.most_change:+.2g}")
    print_table(console, table, 2)
    whole, parts = found[0], found[1:]
    for place, told in (("near_cap_change", "near the cap"), ("other_change", "elsewhere")):
        if (change := getattr(whole, place)) is not None:
            added = sum(getattr(one, place) for one in parts)
            line = (
                f"{told}, the parts alone add up to {added:+.2g}, together they did {change:+.2g}"
            )
            print_line(console, Text(line), 2)


def _name(one: Influence) -> str:
    if one.part != "samples":
        return {"update": "the whole", "momentum": "earlier steps", "decay": "weight decay"}[
            one.part
        ]
    sign = {1: "A > 0", -1: "A < 0"}.get(one.sign or 0, "A = 0")
    return f"{one.task} {sign}{', near cap' if one.near_cap else ''} ({one.samples})"
