"""Which part of an update moved which content, as `glm52 influence` has written it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .run_files import RunFiles
from .terminal import print_line, print_table

KIND = "influence"
WHOLE = "update"
"""The part that is the update itself."""
_TELLING = 0.5
Row = dict[str, Any]
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
_ALWAYS = (
    "part",
    "content_sample",
    "content_task",
    "content_turn",
    "content_tokens",
    "content_near_cap",
    "change",
)
"""Columns that every row has a value of."""


@dataclass(frozen=True)
class Influence:
    """What a part of an update did to the content of the next step; of the whole: as measured."""

    part: str
    task: str | None
    sign: int | None
    near_cap: bool | None
    samples: int | None
    near_cap_change: float | None
    """Its share in that of the mean log-prob of tokens in turns near the per-turn cap, nats; None:
    there are no such."""
    other_change: float | None
    """Of all other generated tokens."""
    own_change: float | None
    """Of the same task's tokens; None for what is of no task, and where it is not drawn again."""
    most: str
    """The turn with the largest change of the sum of its log-probs, as SAMPLE/N, N from 0."""
    most_change: float
    """Of that turn's mean log-prob."""


@dataclass(frozen=True)
class Apart:
    """The update of a step, taken apart."""

    parts: list[Influence]
    """The whole first, then those that moved most."""
    explained: float
    """1 minus what the parts' sum misses of the change of each turn, over all changes, by tokens;
    1: they add up to it everywhere, 0 or less: they tell nothing of it."""


def influences(run: RunFiles, step: int) -> Apart | None:
    """A step's update; None, with a warning where there is a file, if it was not taken apart."""
    if step not in run.steps(KIND):
        return None
    table = run.table(KIND, step)
    if table is None:
        return None
    if wrong := _wrong(table):
        run.leave_out(KIND, step, wrong)
        return None
    rows: list[Row] = table.to_pylist()
    parts: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        parts.setdefault((row["part"], row["task"], row["sign"], row["near_cap"]), []).append(row)
    found = map(_influence, parts.values())
    return Apart(sorted(found, key=lambda one: (one.part != WHOLE, -_size(one))), _explained(rows))


def _wrong(table: pa.Table) -> str | None:
    """Why a table tells nothing; None where it does."""
    if not table.schema.equals(SCHEMA):
        return "has other columns than this code writes"
    if WHOLE not in table["part"].to_pylist():
        return "does not tell of the whole update"
    if nulls := [name for name in _ALWAYS if table[name].null_count]:
        return f"lacks {', '.join(nulls)} of some rows"
    if pc.min(table["content_tokens"]).as_py() < 1:
        return "tells of turns without tokens"
    return None


def _explained(rows: Sequence[Row]) -> float:
    turns: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        moved = row["change"] * row["content_tokens"]
        turn = turns.setdefault((row["content_sample"], row["content_turn"]), [0.0, 0.0])
        turn[row["part"] == WHOLE] += moved
    whole = sum(abs(update) for _, update in turns.values())
    missed = sum(abs(added - update) for added, update in turns.values())
    return 1 - missed / whole if whole else 1.0


def _influence(rows: Sequence[Row]) -> Influence:
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


def _mean(rows: Sequence[Row]) -> float | None:
    """Over tokens."""
    if not rows:
        return None
    tokens = [row["content_tokens"] for row in rows]
    return float(np.average([row["change"] for row in rows], weights=tokens))


def _size(one: Influence) -> float:
    return max(abs(one.near_cap_change or 0.0), abs(one.other_change or 0.0))


def print_influence(console: Console, step: int, found: Apart, most: int | None = None) -> None:
    """Prints what the parts of a step's update did, those `most` that moved most."""
    shown = found.parts[:most]
    left = len(found.parts) - len(shown)
    more = f", {left} more in --json" if left else ""
    title = f"the update of step {step}: change of log-prob of what step {step + 1} generated"
    print_line(console, Text(f"{title}, nats a token{more}", "bold"))
    table = Table(box=None, pad_edge=False)
    table.add_column("part (samples)", overflow="fold")
    for name in ("near cap", "elsewhere", "its task"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("most, sample/turn", overflow="fold")
    for one in shown:
        numbers = (one.near_cap_change, one.other_change, one.own_change)
        cells = ["-" if number is None else f"{number:+.2g}" for number in numbers]
        table.add_row(_name(one), *cells, f"{one.most} {one.most_change:+.2g}")
    print_table(console, table, 2)
    told = f"turn by turn the parts tell {max(found.explained, 0):.0%} of what the update did"
    if found.explained < _TELLING:
        told += ": it is too far from linear, so take them for tendencies"
    print_line(console, Text(told), 2)


def _name(one: Influence) -> str:
    if one.part != "samples":
        return {"update": "the whole", "momentum": "earlier steps", "decay": "weight decay"}[
            one.part
        ]
    sign = {1: "A > 0", -1: "A < 0"}.get(one.sign or 0, "A = 0")
    return f"{one.task} {sign}{', near cap' if one.near_cap else ''} ({one.samples})"
