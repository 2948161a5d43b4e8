"""What the runs of a sweep came to: a row a run, and a row a group of runs that differ in seed.

A number that was measured under another definition than its column's newest is refused: its cell
says so, and no mean takes it in.
"""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..config.classes import Effect, judge
from ..config.compose import leaves, recorded_config
from ..config.files import atomic_write_bytes
from ..config.identity import NODE_TELLS
from ..config.schema import RunConfig
from .charts import Points
from .facts import Facts, gather, training_s, window
from .run_files import RunFiles
from .stats import Interval, interval_over_runs
from .sweep_files import SweepFiles, SweepPoint
from .trend import log_trend

TABLE_FILE = "table.csv"
SEED = "seed"
_NOT_SAID = ("name", "runs_dir")
"""Knobs whose difference between points means nothing."""


@dataclass(frozen=True)
class Column:
    """One outcome."""

    key: str
    """In table.csv; with _low and _high for its interval."""
    title: str
    short: str
    """Title where there is little room."""
    form: str
    """Format of a number."""
    metric: str | None
    """Whose definition it was measured under; None: needs none."""
    ratio: bool = False
    """A factor, so that means are taken of its logarithm."""
    low: float = -math.inf
    """No value lies below, so no interval reaches there."""
    high: float = math.inf
    """No value lies above."""

    def text(self, value: float) -> str:
        return format(value, self.form)


_EVAL, _KL = "eval/reward_mean", "trainer/train_rollout_kl"
_REWARD, _TRUNCATED = "rollout/reward_mean", "rollout/truncated_share"
COLUMNS = (
    Column("held_out_before", "held-out before", "before", ".3f", _EVAL, low=0.0, high=1.0),
    Column("held_out_after", "held-out after", "after", ".3f", _EVAL, low=0.0, high=1.0),
    Column("held_out_change", "change", "change", "+.3f", _EVAL, low=-1.0, high=1.0),
    Column("train_reward", "training reward", "reward", ".3f", _REWARD, low=0.0, high=1.0),
    Column("train_rollout_kl", "train_rollout_kl", "KL", ".3g", _KL, low=0.0),
    Column("kl_growth", "KL growth", "KL growth", ".3g", _KL, ratio=True),
    Column("truncated", "truncated", "cut", ".1%", _TRUNCATED, low=0.0, high=1.0),
    Column("hours", "hours", "hours", ".2f", None, low=0.0),
)


@dataclass(frozen=True)
class Cell:
    """A number with its 95 % interval, NaN where there is none; or why there is no number."""

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    refused: str = ""

    @property
    def known(self) -> bool:
        return not math.isnan(self.value)

    def text(self, column: Column) -> str:
        """The number, – where nothing is known, or the refusal."""
        if self.refused:
            return self.refused
        if not self.known:
            return "–"
        return ("×" if column.ratio else "") + column.text(self.value)

    def interval_text(self, column: Column) -> str:
        """As [0.301, 0.533]; empty where there is no interval."""
        if self.refused or math.isnan(self.low):
            return ""
        return f"[{column.text(self.low)}, {column.text(self.high)}]"


@dataclass(frozen=True)
class Row:
    """A run, or a group of runs that differ in their seed alone."""

    name: str
    status: str
    values: dict[str, str]
    """Of what varies."""
    cells: dict[str, Cell]
    """Column -> what it came to."""
    step: int | None = None
    """The last one trained; None for a group."""
    path: Path | None = None
    """Its run folder; None for a group."""
    runs: int = 1
    """Finished runs that a group's numbers are over."""


@dataclass(frozen=True)
class Outcome:
    """One run, read."""

    run: RunFiles
    facts: Facts
    cells: dict[str, Cell]


@dataclass(frozen=True)
class Table:
    """A whole sweep."""

    sweep: SweepFiles
    varies: list[str]
    rows: list[Row]
    groups: list[Row]
    """Empty where no seed varies."""
    outcomes: dict[str, Outcome]
    """Point -> what its run came to, of those that can be read."""
    notes: list[str] = field(default_factory=list)
    """What must be known when rows are compared."""


class Reader:
    """Reads a sweep again and again; a config, and a run that has finished, are read once."""

    def __init__(self) -> None:
        self._configs: dict[str, RunConfig] = {}
        self._finished: dict[str, Outcome] = {}

    def read(self, sweep: SweepFiles) -> Table:
        """The table as the files are now."""
        outcomes: dict[str, Outcome] = {}
        statuses: dict[str, str] = {}
        for point in sweep.points:
            statuses[point.name] = status = sweep.status(point)
            if status == "missing":
                continue
            found = self._finished.get(point.name) or outcome(self._open(point))
            if status == "finished":
                self._finished[point.name] = found
            outcomes[point.name] = found
        return tabulate(sweep, statuses, outcomes)

    def _open(self, point: SweepPoint) -> RunFiles:
        if point.name not in self._configs:
            self._configs[point.name] = recorded_config(point.path)[0]
        return RunFiles(point.path, self._configs[point.name])


def outcome(run: RunFiles) -> Outcome:
    """What a run came to, as far as its files tell."""
    facts = gather(run)
    cells = {column.key: Cell() for column in COLUMNS}
    if facts.evals:
        cells["held_out_before"] = _cell(facts.held_out(min(facts.evals)))
    if facts.held_out_change is not None:
        _, last, change = facts.held_out_change
        cells["held_out_after"] = _cell(facts.held_out(last))
        cells["held_out_change"] = _cell(change.interval)
    count = window(run, facts)
    cells["train_reward"] = Cell(_last_mean(facts.train_reward, count))
    cells["truncated"] = Cell(_last_mean(facts.truncated, count))
    kl = run.series("trainer/train_rollout_kl")
    if kl:
        cells["train_rollout_kl"] = Cell(list(kl.values())[-1])
    trend = log_trend(kl)
    if trend is not None:
        steps = max(kl) - min(kl)
        value, low, high = (_exp(s * steps) for s in (trend.slope, trend.low, trend.high))
        cells["kl_growth"] = Cell(value, low, high)
    cells["hours"] = Cell(_hours(run))
    return Outcome(run, facts, cells)


def tabulate(sweep: SweepFiles, statuses: Mapping[str, str], outcomes: dict[str, Outcome]) -> Table:
    """The rows of what was read."""
    refused, notes = _definitions(outcomes)
    rows = []
    for point in sweep.points:
        found = outcomes.get(point.name)
        cells = found.cells if found else {column.key: Cell() for column in COLUMNS}
        steps = found.facts.steps if found else []
        rows.append(
            Row(
                point.name,
                statuses[point.name],
                point.values,
                {**cells, **refused.get(point.name, {})},
                step=steps[-1] if steps else 0,
                path=point.path,
            )
        )
    varies = sweep.varies
    groups = _groups(rows, varies) if SEED in varies else []
    left_out = [row.status for row in rows if row.status != "finished"]
    if groups and left_out:
        flatter = ": if training diverged there, the means flatter" if "failed" in left_out else ""
        notes.append(
            f"{len(left_out)} of {len(rows)} runs have not finished and are in no mean over "
            f"seeds{flatter}."
        )
    if not groups:
        notes.append("One run a row: without seed=1,2,3 there is no interval over seeds.")
    notes += _not_comparable(outcomes) + _differences_unasked(outcomes)
    notes += [f"{name}: {text}" for name, one in outcomes.items() for text in one.run.warnings]
    return Table(sweep, varies, rows, groups, outcomes, notes)


def to_csv(table: Table) -> str:
    """The table for other programs: full numbers, empty where nothing is known."""
    text = io.StringIO()
    write = csv.writer(text, lineterminator="\n").writerow
    numbers = [f"{c.key}{end}" for c in COLUMNS for end in ("", "_low", "_high")]
    write(["row", "name", "status", "runs", "step", *table.varies, *numbers])
    for kind, rows in (("run", table.rows), ("group", table.groups)):
        for row in rows:
            values = [row.values.get(key, "") for key in table.varies]
            figures = [part for column in COLUMNS for part in _parts(row.cells[column.key])]
            step = "" if row.step is None else row.step
            write([kind, row.name, row.status, row.runs, step, *values, *figures])
    return text.getvalue()


def write_csv(table: Table) -> Path:
    """Writes SWEEP/table.csv and returns its path."""
    path = table.sweep.path / TABLE_FILE
    atomic_write_bytes(path, to_csv(table).encode())
    return path


def _parts(cell: Cell) -> list[str]:
    if cell.refused:
        return [cell.refused, "", ""]
    return ["" if math.isnan(v) else repr(v) for v in (cell.value, cell.low, cell.high)]


def _cell(interval: Interval | None) -> Cell:
    return Cell() if interval is None else Cell(interval.mean, interval.low, interval.high)


def _last_mean(points: Points, count: int) -> float:
    """Mean of the last `count` steps, or of half of them where there are fewer than twice that."""
    values = list(points.values())
    if not values:
        return math.nan
    last = values[-max(1, min(count, len(values) // 2)) :]
    return sum(last) / len(last)


def _hours(run: RunFiles) -> float:
    return training_s(run) / 3600 if run.series("time/train_step") else math.nan


def _exp(power: float) -> float:
    return math.inf if power > 700 else math.exp(power)


# --- groups ------------------------------------------------------------------------------------


def _groups(rows: Sequence[Row], varies: Sequence[str]) -> list[Row]:
    keys = [key for key in varies if key != SEED]
    members: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        members.setdefault(tuple(row.values.get(key, "") for key in keys), []).append(row)
    found = []
    for values, group in members.items():
        finished = [row for row in group if row.status == "finished"]
        named = dict(zip(keys, values, strict=True))
        found.append(
            Row(
                ",".join(f"{key}={value}" for key, value in named.items()) or "all seeds",
                f"{len(finished)} of {len(group)} seeds",
                named,
                {column.key: _over_seeds(column, finished) for column in COLUMNS},
                runs=len(finished),
            )
        )
    return found


def _over_seeds(column: Column, rows: Sequence[Row]) -> Cell:
    """Mean over the runs that have a number, and Student's t interval over them, cut where no value
    can lie.
    """
    cells = [row.cells[column.key] for row in rows]
    refusals = [cell.refused for cell in cells if cell.refused]
    if refusals:
        return Cell(refused=refusals[0])
    values = [cell.value for cell in cells if cell.known]
    if column.ratio:
        values = [math.log(value) for value in values if 0 < value < math.inf]
    interval = interval_over_runs(values)
    if interval is None:
        return Cell()
    back: Callable[[float], float] = _exp if column.ratio else float
    low, high = back(interval.low), back(interval.high)
    if not math.isnan(low):
        low, high = max(low, column.low), min(high, column.high)
    return Cell(back(interval.mean), low, high)


# --- what may be compared ------------------------------------------------------------------------


def _definitions(outcomes: Mapping[str, Outcome]) -> tuple[dict[str, dict[str, Cell]], list[str]]:
    """Point -> column -> refusal, where a metric was defined otherwise; and notes that say so."""
    refused: dict[str, dict[str, Cell]] = {}
    notes = []
    for column in COLUMNS:
        if column.metric is None:
            continue
        versions = {
            name: found.run.definition(column.metric) or 1
            for name, found in outcomes.items()
            if found.cells[column.key].known
        }
        newest = max(versions.values(), default=1)
        older = {name: version for name, version in versions.items() if version != newest}
        for name, version in older.items():
            told = f"definition {version}, not {newest}"
            refused.setdefault(name, {})[column.key] = Cell(refused=told)
        if older:
            notes.append(
                f"{column.title}: {len(older)} of {len(versions)} runs measured {column.metric} "
                f"under an older definition than {newest}; those cells hold no number."
            )
    return refused, notes


def _not_comparable(outcomes: Mapping[str, Outcome]) -> list[str]:
    """A sentence for each knob that varies and changes what is measured."""
    values: dict[str, set[str]] = {}
    for found in outcomes.values():
        for knob, value in leaves(found.run.config).items():
            values.setdefault(knob, set()).add(repr(value))
    notes = []
    for knob, different in values.items():
        judgement = judge(knob)
        if len(different) > 1 and judgement.effect is Effect.measured:
            touched = "rewards, held-out ones too," if judgement.held_out else "training rewards"
            notes.append(
                f"{knob} varies, so {judgement.why}: {touched} do not compare between its values."
            )
    return notes


def _differences_unasked(outcomes: Mapping[str, Outcome]) -> list[str]:
    """A sentence for what differs between the runs though no override asked for it."""
    notes = []
    identities = {name: found.run.identity for name, found in outcomes.items()}
    for fact, said in (("code", "code"), ("packages", "package versions")):
        kinds = {repr(identity.get(fact)) for identity in identities.values()}
        # Runs that are queued have not told theirs yet.
        if len([kind for kind in kinds if NODE_TELLS not in kind]) > 1:
            notes.append(
                f"The runs were made with different {said}: a difference between them may come "
                "from that. See: glm52 diff."
            )
    went_on = [name for name, identity in identities.items() if identity.get("history")]
    if went_on:
        notes.append(
            f"{' and '.join(went_on)} went on as another run than they were started as; "
            "identity.json tells the differences."
        )
    return notes
