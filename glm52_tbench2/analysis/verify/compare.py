"""Where two runs part first: in a batch, in what the trainer made of it, or in the weights.

What comes first is the cause of what follows, so files are compared in the order in which they
decide one another, and the columns of a batch likewise: tokens before the verdict on them.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from ..run_files import RunFiles
from .step_files import TOKEN_COLUMNS, TRAIN_COLUMNS, Array, Damaged, Lists, StepFile
from .weights import first_weight
from .whole import SOURCES

TIMES = ("generate_s", "sandbox_s", "verify_s", "total_s")
TURN_COSTS = ("generate_s", "exec_s", "cached_tokens")
"""Of a turn, what depends on the machine's load: times, and what the engine found in its cache."""
COST_METRICS = (
    "cached_share",
    "generate_share",
    "sandbox_share",
    "verify_share",
    "tokens_per_s",
    "wasted_tokens",
    "wasted_share",
)
"""Last words of metrics that depend on the load, besides time/*, replaced/* and wasted/*."""

_DRAWN = ("sample_id", "step", "group", "index", "task_id", "prompt_tokens")
_VERDICT = ("end_reason", "truncated", "reward", "penalty", "advantage")
# The index of the saved tensors; it names the save itself.
_NO_WEIGHTS = (".metadata",)


@dataclass(frozen=True)
class Distance:
    """How far two versions of one step's samples lie apart."""

    generated: int
    """Generated tokens, of the longer version."""
    equal: int
    """Those before the first token in which their sample's versions differ."""
    logprob: float
    """Largest difference of log-probs over the equal ones, nats."""

    def __str__(self) -> str:
        share = self.equal / max(self.generated, 1)
        return (
            f"Of its {self.generated:,} generated tokens {share:.1%} come before the first "
            f"difference of their sample; over those, log-probs lie at most {self.logprob:.3g} "
            "nats apart."
        )


@dataclass(frozen=True)
class Difference:
    """One file in which two runs differ."""

    step: int
    kind: str
    """batch, batch metrics, trainer, trainer metrics, weights, evaluation or evaluation metrics."""
    text: str
    """The file and the first place in it, with both values."""
    distance: Distance | None = None


@dataclass
class Compared:
    """Two runs as far as both go."""

    steps: int = 0
    """Training steps that both have and that were compared."""
    samples: int = 0
    tokens: int = 0
    """Generated tokens of their batches."""
    evaluations: int = 0
    checkpoints: list[int] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    """In the order of cause and effect."""


def compare(one: RunFiles, other: RunFiles, everything: bool = False) -> Compared:
    """Compares step by step, holding one step in memory.

    `everything`: go on after the first difference. Raises Damaged for a file that cannot be read.
    """
    found = Compared()
    for run in (one, other):
        _gapless(run)
    for step in sorted({0, *_both(one, other, "rollouts"), *_both(one, other, "eval")}):
        for difference in _step(one, other, step, found):
            found.differences.append(difference)
            if not everything:
                return found
    return found


def _gapless(run: RunFiles) -> None:
    """Raises Damaged when a step that the run has made has no file."""
    for kind in ("rollouts", "train"):
        steps = run.steps(kind)
        last = run.config.steps if run.state == "finished" else max(steps, default=0)
        if lost := set(range(1, last + 1)) - set(steps):
            raise Damaged(f"{run.path}: {kind}/step_{min(lost):06d}.parquet is missing")


def _both(one: RunFiles, other: RunFiles, kind: str) -> set[int]:
    return set(one.steps(kind)) & set(other.steps(kind))


def _step(one: RunFiles, other: RunFiles, step: int, found: Compared) -> Iterator[Difference]:
    """The differences of one step; counts in `found` what was compared."""
    if step in _both(one, other, "rollouts"):
        batches = _pair(one, other, "rollouts", step)
        found.steps, found.samples = found.steps + 1, found.samples + batches[0].rows
        found.tokens += int(batches[0].lists("loss_mask").values.sum())
        yield from _compared(step, "batch", batches, batches)
        yield from _metrics(one, other, step, "rollouts", "batch metrics")
        if step in _both(one, other, "train"):
            scored = _pair(one, other, "train", step)
            yield from _compared(step, "trainer", scored, batches)
            yield from _metrics(one, other, step, "train", "trainer metrics")
        yield from _weights(one, other, step, found)
    if step in _both(one, other, "eval"):
        found.evaluations += 1
        files = _pair(one, other, "eval", step)
        yield from _compared(step, "evaluation", files, files)
        yield from _metrics(one, other, step, "eval", "evaluation metrics")


def _pair(one: RunFiles, other: RunFiles, kind: str, step: int) -> tuple[StepFile, StepFile]:
    files = []
    for run in (one, other):
        try:
            files.append(StepFile(run.path, kind, step, run.identity.get("hash")))
        except Damaged as error:
            raise Damaged(f"{run.path}: {error}") from error
    return files[0], files[1]


# --- step files --------------------------------------------------------------------------------


def _compared(
    step: int, kind: str, files: tuple[StepFile, StepFile], batches: tuple[StepFile, StepFile]
) -> Iterator[Difference]:
    """The first difference of two step files, if there is one. `batches`: of the same samples."""
    place = _first_train(files, batches[0]) if kind == "trainer" else _first_sample(files)
    if place is not None:
        name = TRAIN_COLUMNS[0] if kind == "trainer" else "rollout_logprobs"
        text = f"{files[0].name}, {place}"
        yield Difference(step, kind, text, _distance(files, batches, name))


def _first_sample(files: tuple[StepFile, StepFile]) -> str | None:
    """The first place in which two batches differ; None: nowhere."""
    one, other = files
    if one.rows != other.rows:
        return f"samples: {one.rows} | {other.rows}"
    known = {*_DRAWN, *TOKEN_COLUMNS, "turns", *_VERDICT, *TIMES}
    rest = [
        name
        for name in dict.fromkeys([*one.table.column_names, *other.table.column_names])
        if name not in known
    ]
    return (
        _first_scalar(files, _DRAWN)
        or _first_token(files, TOKEN_COLUMNS, one)
        or _first_turn(files)
        or _first_scalar(files, [*_VERDICT, *rest])
    )


def _first_train(files: tuple[StepFile, StepFile], batch: StepFile) -> str | None:
    one, other = files
    if one.sample_ids != other.sample_ids:
        return "its samples are not those of the other"
    return _first_token(files, TRAIN_COLUMNS, batch)


def _first_scalar(
    files: tuple[StepFile, StepFile], names: tuple[str, ...] | list[str]
) -> str | None:
    """The first of the columns `names` that differs, and its first sample."""
    one, other = files
    for name in names:
        if name not in one.table.column_names or name not in other.table.column_names:
            return f"column {name}: in one of the two only"
        rows = _differing(one.column(name), other.column(name))
        if len(rows):
            row = int(rows[0])
            mine, theirs = (file.column(name)[row].as_py() for file in files)
            return f"{one.sample(row)}, {name}: {mine!r} | {theirs!r}{_of(rows, one.rows)}"
    return None


def _first_turn(files: tuple[StepFile, StepFile]) -> str | None:
    """The first sample whose turns differ in anything but their cost."""
    one, other = files
    if not np.array_equal(one.turn_offsets, other.turn_offsets):
        rows = np.flatnonzero(np.diff(one.turn_offsets) != np.diff(other.turn_offsets))
        row = int(rows[0])
        counts = " | ".join(str(int(np.diff(file.turn_offsets)[row])) for file in files)
        return f"{one.sample(row)}, turns: {counts}{_of(rows, one.rows)}"
    names = [part.name for part in one.turns.type if part.name not in TURN_COSTS]
    found = {name: _differing(one.turns.field(name), other.turns.field(name)) for name in names}
    first = min((int(turns[0]) for turns in found.values() if len(turns)), default=None)
    if first is None:
        return None
    name = next(name for name, turns in found.items() if len(turns) and turns[0] == first)
    row = int(np.searchsorted(one.turn_offsets, first, side="right")) - 1
    mine, theirs = (file.turns.field(name)[first].as_py() for file in files)
    turn = first - int(one.turn_offsets[row]) + 1
    return f"{one.sample(row)}, turn {turn}, {name}: {mine!r} | {theirs!r}"


def _first_token(
    files: tuple[StepFile, StepFile], names: Sequence[str], batch: StepFile
) -> str | None:
    """The first token, in the order of samples, in which one of the columns `names` differs."""
    one, other = files
    columns = [(one.lists(name), other.lists(name)) for name in names]
    if all(_same_lists(mine, theirs) for mine, theirs in columns):
        return None
    first: tuple[int, int] | None = None
    differing = 0
    for row in range(one.rows):
        positions = [
            position
            for mine, theirs in columns
            if (position := _first_difference(mine.row(row), theirs.row(row))) is not None
        ]
        if positions:
            differing += 1
            first = first or (row, min(positions))
    assert first is not None
    row, position = first
    told = [
        f"{name} {_value(mine.row(row), position)} | {_value(theirs.row(row), position)}"
        for name, (mine, theirs) in zip(names, columns, strict=True)
        if _first_difference(mine.row(row), theirs.row(row)) == position
    ]
    return (
        f"{batch.sample(row)}, {batch.place(row, position)}: {', '.join(told)}"
        f"{_of(range(differing), one.rows)}"
    )


def _same_lists(mine: Lists, theirs: Lists) -> bool:
    return np.array_equal(mine.offsets, theirs.offsets) and np.array_equal(
        _bits(mine.values), _bits(theirs.values)
    )


def _first_difference(mine: Array, theirs: Array) -> int | None:
    """First index at which two rows differ, one that ends before the other included."""
    shared = min(len(mine), len(theirs))
    unequal = np.flatnonzero(_bits(mine[:shared]) != _bits(theirs[:shared]))
    if len(unequal):
        return int(unequal[0])
    return shared if len(mine) != len(theirs) else None


def _differing(mine: pa.Array, theirs: pa.Array) -> Array:
    """Indices at which two columns of one length differ."""
    if pa.types.is_floating(mine.type) and mine.type == theirs.type:
        numbers = (_bits(column.to_numpy(zero_copy_only=False)) for column in (mine, theirs))
        return np.flatnonzero(np.not_equal(*numbers))
    if mine.equals(theirs):
        return np.empty(0, dtype=np.int64)
    pairs = zip(mine.to_pylist(), theirs.to_pylist(), strict=True)
    return np.array([row for row, (a, b) in enumerate(pairs) if a != b], dtype=np.int64)


def _bits(values: Array) -> Array:
    """Floats as the integers of their bits: NaN equals NaN, and 0 is not -0."""
    return values.view(f"i{values.itemsize}") if values.dtype.kind == "f" else values


def _value(row: Array, position: int) -> str:
    if position >= len(row):
        return "end"
    value = row[position]
    # As many digits as tell two neighbours apart.
    return f"{value:.9g}" if row.dtype.kind == "f" else str(value)


def _of(differing: Array | range, rows: int) -> str:
    return f"; {len(differing)} of {rows} samples differ"


def _distance(
    files: tuple[StepFile, StepFile], batches: tuple[StepFile, StepFile], name: str
) -> Distance | None:
    """How far `name` and the tokens before it lie apart; None when samples are others."""
    if batches[0].sample_ids != batches[1].sample_ids:
        return None
    tokens = [batch.lists("tokens") for batch in batches]
    masks = [batch.lists("loss_mask") for batch in batches]
    logprobs = [file.lists(name) for file in files]
    generated = equal = 0
    largest = 0.0
    for row in range(batches[0].rows):
        first = _first_difference(tokens[0].row(row), tokens[1].row(row))
        mask = masks[0].row(row).astype(bool)
        generated += max(int(mask.sum()), int(masks[1].row(row).sum()))
        shared = mask[:first]
        equal += int(shared.sum())
        mine, theirs = (column.row(row)[: len(shared)] for column in logprobs)
        if len(mine) == len(theirs) == len(shared) and shared.any():
            largest = max(largest, float(np.abs(mine - theirs)[shared].max()))
    return Distance(generated, equal, largest)


# --- metrics and weights -----------------------------------------------------------------------


def _metrics(
    one: RunFiles, other: RunFiles, step: int, kind: str, name: str
) -> Iterator[Difference]:
    mine, theirs = (run.metrics.get(SOURCES[kind], {}).get(step, {}) for run in (one, other))
    names = [key for key in dict.fromkeys([*mine, *theirs]) if not _is_cost(key)]
    # As they stand in the file, so that NaN equals NaN.
    differing = [key for key in names if json.dumps(mine.get(key)) != json.dumps(theirs.get(key))]
    if differing:
        first = differing[0]
        values = " | ".join(str(metrics.get(first, "absent")) for metrics in (mine, theirs))
        more = f"; {len(differing)} of {len(names)} metrics differ"
        yield Difference(step, name, f"metrics.jsonl, step {step}, {first}: {values}{more}")


def _is_cost(metric: str) -> bool:
    return (
        metric.startswith("time/")
        or "/replaced/" in metric
        or "/wasted/" in metric
        or metric.rpartition("/")[2] in COST_METRICS
    )


def _weights(one: RunFiles, other: RunFiles, step: int, found: Compared) -> Iterator[Difference]:
    """Of checkpoints that both runs keep, by the hashes noted when they were written."""
    mine, theirs = (_stable(run.path / "checkpoints" / f"step_{step:06d}") for run in (one, other))
    if mine is None or theirs is None:
        return
    found.checkpoints.append(step)
    differing = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
    if differing:
        place = f"checkpoints/step_{step:06d}/{differing[0]}"
        values = " | ".join(files.get(differing[0], "absent")[:12] for files in (mine, theirs))
        weight = first_weight(one, other, step)
        text = f"{place}: sha256 {values}{f'; {weight}' if weight else ''}"
        yield Difference(step, "weights", text)


def _stable(folder: Path) -> dict[str, str] | None:
    """File -> sha256 of a complete checkpoint's weights and optimizer state; None without one."""
    try:
        files = json.loads((folder / "STABLE").read_text())["files"]
        return {name: f["sha256"] for name, f in sorted(files.items()) if name not in _NO_WEIGHTS}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{folder}: its STABLE file is damaged ({error})") from error
