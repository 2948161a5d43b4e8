"""How the runs among the sides came out, side by side.

Reads metrics.jsonl and the evaluations that are compared, nothing else.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ...config.schema import RunConfig
from ..charts import Points
from ..facts import training_s
from ..run_files import RunFiles
from ..sentinel.files import rewards_at
from ..stats import Change, Interval, Rewards, mean_interval, paired_change, sign_test
from ..trend import Trend, log_trend
from .compare import Difference, held_out_comparable, incomparable
from .sides import Side

LATE_STEPS = 30
"""The published divergence took this many steps; a trend over the whole run can hide one."""
REWARD, TRUNCATED = "rollout/reward_mean", "rollout/truncated_share"
KL, HELD_OUT = "trainer/train_rollout_kl", "eval/reward_mean"


@dataclass(frozen=True)
class Cell:
    """One side's outcome: as text, and its numbers by name."""

    text: str
    value: Mapping[str, Any] = field(default_factory=dict)
    tone: str = ""
    """good, bad or nothing."""


@dataclass(frozen=True)
class Outcome:
    """One row: an outcome of every side that is a run."""

    key: str
    title: str
    cells: Mapping[str, Cell]
    """Label -> cell."""
    comparable: bool = True
    """False where the sides measure something else; the numbers then stand for themselves."""
    hint: str = ""


@dataclass
class Reading:
    """The files of one run."""

    side: Side
    files: RunFiles
    evals: dict[int, Rewards] = field(default_factory=dict)
    """Steps trained -> held-out rewards, of the evaluations that were asked for."""
    eval_steps: list[int] = field(default_factory=list)

    def series(self, name: str) -> Points:
        return self.files.series(name)

    def held_out(self, step: int) -> Rewards:
        """The rewards of the evaluation after `step` steps, read once."""
        if step not in self.evals:
            self.evals[step] = rewards_at(self.files, step)
        return self.evals[step]

    def names(self) -> list[str]:
        """Every metric of the training batches."""
        steps = self.files.metrics.get("driver", {}).values()
        return list(dict.fromkeys(name for metrics in steps for name in metrics))


def read_runs(sides: Sequence[Side]) -> list[Reading]:
    """Opens the sides that are runs."""
    found = []
    for side in sides:
        if side.run is not None:
            # An older version's config may not fit today's schema; nothing here reads it.
            files = RunFiles(side.run, RunConfig())
            found.append(Reading(side, files, eval_steps=files.steps("eval")))
    return found


def outcomes(runs: Sequence[Reading], differences: Sequence[Difference]) -> list[Outcome]:
    """Every outcome that at least one run has. The base of paired rows is the first run."""
    if not runs:
        return []
    curves, held_out = not incomparable(differences), held_out_comparable(differences)
    count = _window(runs)
    first_last = f"mean of the first and of the last {count} steps"
    found = [
        _row(runs, "state", "state", _state),
        _metric_row(
            runs,
            "training_reward",
            "training reward",
            REWARD,
            _first_last(count),
            curves,
            first_last,
        ),
        _held_out(runs, "held_out_before", "before", 0, held_out),
        _held_out(runs, "held_out_after", "after", -1, held_out),
        _metric_row(runs, "held_out_change", "held-out change", HELD_OUT, _change, held_out),
        _churn(runs, held_out),
        _metric_row(
            runs,
            "kl",
            "train_rollout_kl",
            KL,
            _first_last(count, digits="{:.3g}"),
            curves,
            first_last,
        ),
        _metric_row(
            runs,
            "kl_trend",
            "its growth a step",
            KL,
            _trend(None),
            curves,
            "growth of the logarithm",
        ),
        _metric_row(
            runs,
            "kl_trend_late",
            f"in the last {LATE_STEPS}",
            KL,
            _trend(LATE_STEPS),
            curves,
        ),
        _metric_row(
            runs, "truncated", "truncated share", TRUNCATED, _first_last(count), curves, first_last
        ),
        *_ends(runs, curves),
        _row(runs, "tokens", "generated tokens", _tokens),
        _row(runs, "hours", "wall clock", _hours),
        _row(runs, "step_s", "median step", _step_time),
    ]
    return [row for row in found if any(cell.value for cell in row.cells.values())]


def _row(
    runs: Sequence[Reading],
    key: str,
    title: str,
    cell: Callable[[Reading], Cell],
    comparable: bool = True,
    hint: str = "",
) -> Outcome:
    return Outcome(
        key, title, {run.side.label: cell(run) for run in runs}, comparable or len(runs) < 2, hint
    )


def _metric_row(
    runs: Sequence[Reading],
    key: str,
    title: str,
    metric: str,
    cell: Callable[[Reading, str], Cell],
    comparable: bool,
    hint: str = "",
) -> Outcome:
    """A row of one metric; a side that defines it otherwise than the base says only that."""
    versions = {run.side.label: version for run in runs if (version := definition(run, metric))}
    base = next(iter(versions.items()), None)

    def guarded(run: Reading) -> Cell:
        own = versions.get(run.side.label)
        if base is not None and own is not None and own != base[1]:
            text = f"another definition of {metric} ({own}; {base[1]} in {base[0]}): not compared"
            return Cell(text, {"definition": own})
        return cell(run, metric)

    return _row(runs, key, title, guarded, comparable, hint)


def _window(runs: Sequence[Reading]) -> int:
    """Steps to average over: about one pass over the tasks, at most half of the shortest run."""
    passes, lengths = [5], []
    for run in runs:
        if (steps := run.side.steps_a_pass) is not None:
            passes.append(round(steps))
        if points := run.series(REWARD):
            lengths.append(len(points))
    return max(1, min(max(passes), min(lengths, default=2) // 2))


_SPENT = ("time/eval_s", "time/rollout_s")
_NOTHING = Cell("–")


def definition(run: Reading, metric: str) -> int | None:
    """Version of the definition behind a metric of a run; None where the run has none."""
    return run.files.definition(metric)


def _state(run: Reading) -> Cell:
    done = max(run.series(REWARD), default=0)
    planned = run.side.knobs.get("steps", "?")
    state = run.files.state
    return Cell(
        f"{state}, step {done}/{planned}",
        {"state": state, "steps": done},
        "" if state != "stopped" else "bad",
    )


def _first_last(count: int, digits: str = "{:.2f}") -> Callable[[Reading, str], Cell]:
    def cell(run: Reading, metric: str) -> Cell:
        values = list(run.series(metric).values())
        if not values:
            return _NOTHING
        first, last = _mean(values[:count]), _mean(values[-count:])
        return Cell(
            f"{digits.format(first)} → {digits.format(last)}",
            {"first": first, "last": last, "window": count},
        )

    return cell


def _held_out(
    runs: Sequence[Reading], key: str, when: str, index: int, comparable: bool
) -> Outcome:
    """The first or the last evaluation; with only one, it stands before."""
    steps = {
        run.side.label: run.eval_steps[index]
        for run in runs
        if len(run.eval_steps) > (0 if index == 0 else 1)
    }
    same = len(set(steps.values())) == 1

    def cell(run: Reading, _: str) -> Cell:
        step = steps.get(run.side.label)
        found = None if step is None else mean_interval(run.held_out(step))
        if found is None:
            return _NOTHING
        return Cell(
            str(found) if same else f"{found}, step {step}", {"step": step, **_interval(found)}
        )

    title = f"held-out, step {next(iter(steps.values()))}" if same else f"held-out {when}"
    return _metric_row(runs, key, title, HELD_OUT, cell, comparable)


def _change(run: Reading, _: str) -> Cell:
    steps = run.eval_steps
    if len(steps) < 2:
        return _NOTHING
    change = paired_change(run.held_out(steps[0]), run.held_out(steps[-1]))
    if change is None:
        return _NOTHING
    return Cell(
        f"{change.interval:+}\n{_tasks_moved(change)}",
        {
            **_interval(change.interval),
            "up": change.up,
            "down": change.down,
            "same": change.same,
            "p": sign_test(change.up, change.down),
        },
        {"rose": "good", "fell": "bad"}.get(change.verdict, ""),
    )


def _churn(runs: Sequence[Reading], comparable: bool) -> Outcome:
    """Each run against the base, task by task, at the last evaluation that both have."""
    base, cells = runs[0], {}
    for run in runs[1:]:
        shared = sorted(set(base.eval_steps) & set(run.eval_steps))
        change = None
        while shared and change is None:
            step = shared.pop()
            change = paired_change(base.held_out(step), run.held_out(step))
        if change is None:
            cells[run.side.label] = _NOTHING
            continue
        p = sign_test(change.up, change.down)
        cells[run.side.label] = Cell(
            f"{change.interval:+}\n{_tasks_moved(change)}\nstep {step}, p = {p:.2g}",
            {
                **_interval(change.interval),
                "step": step,
                "up": change.up,
                "down": change.down,
                "same": change.same,
                "p": p,
            },
            {"rose": "good", "fell": "bad"}.get(change.verdict, ""),
        )
    if cells:
        cells = {base.side.label: Cell("the base"), **cells}
    return Outcome(
        "held_out_paired",
        f"held-out against {base.side.label}",
        cells,
        comparable,
        "task by task at the last evaluation that both have; p of a two-sided sign test",
    )


def _tasks_moved(change: Change) -> str:
    verdict = "" if change.verdict == "unclear" else f"{change.verdict}: "
    return f"{verdict}{change.up} up, {change.down} down, {change.same} same"


def _trend(last: int | None) -> Callable[[Reading, str], Cell]:
    def cell(run: Reading, metric: str) -> Cell:
        points = run.series(metric)
        if last is not None:
            if len(points) < last * 3 // 2:
                return _NOTHING
            points = dict(list(points.items())[-last:])
        found = log_trend(points)
        return _NOTHING if found is None else Cell(*_told(found))

    return cell


def _told(trend: Trend) -> tuple[str, dict[str, Any], str]:
    text = f"{100 * math.expm1(trend.slope):+.2g} %"
    if trend.low < trend.high:
        low, high = (100 * math.expm1(bound) for bound in (trend.low, trend.high))
        text += f" [{low:+.2g}, {high:+.2g}]"
    moving = trend.verdict != "no trend"
    if moving:
        verb = "doubles" if trend.slope > 0 else "halves"
        text += f"\n{verb} in {trend.doubling:.3g} steps"
    else:
        text += "\nno trend"
    value = {
        "slope": trend.slope,
        "low": trend.low,
        "high": trend.high,
        "verdict": trend.verdict,
        "doubling_steps": trend.doubling if moving else None,
    }
    return text, value, "bad" if trend.verdict == "rising" else ""


def _ends(runs: Sequence[Reading], comparable: bool) -> list[Outcome]:
    """A row an end reason that any run has seen, the most frequent first."""
    prefix = "rollout/end/"
    shares: dict[str, dict[str, float]] = {}
    for run in runs:
        samples = run.series("rollout/samples")
        total = sum(samples.values())
        for name in run.names():
            if name.startswith(prefix) and total:
                counted = sum(v * samples.get(s, 0.0) for s, v in run.series(name).items())
                if counted:
                    reason = name.removeprefix(prefix)
                    shares.setdefault(reason, {})[run.side.label] = counted / total
    ranked = sorted(shares, key=lambda reason: -max(shares[reason].values()))
    return [
        Outcome(
            f"end/{reason}",
            f"end: {reason}",
            {
                run.side.label: Cell(
                    f"{100 * shares[reason].get(run.side.label, 0.0):.1f} %",
                    {"share": shares[reason].get(run.side.label, 0.0)},
                )
                for run in runs
            },
            comparable or len(runs) < 2,
        )
        for reason in ranked
    ]


def _tokens(run: Reading) -> Cell:
    trained = sum(run.series("rollout/generated_tokens").values())
    wasted = sum(run.series("rollout/wasted_tokens").values())
    held_out = sum(run.series("eval/generated_tokens").values())
    if not trained + wasted + held_out:
        return _NOTHING
    text = f"{_count(trained)} trained"
    if wasted:
        text += f", {_count(wasted)} wasted"
    if held_out:
        text += f"\n{_count(held_out)} in evaluations"
    return Cell(text, {"trained": trained, "wasted": wasted, "evaluations": held_out})


def _hours(run: Reading) -> Cell:
    records = [one for steps in run.files.records.values() for one in steps.values()]
    if not records:
        return _NOTHING
    first = min(records, key=lambda record: record.time)
    # The first record was written when what it tells of had come to its end.
    began = first.time - max(first.metrics.get(name, 0.0) for name in _SPENT)
    wall = max(record.time for record in records) - began
    busy = training_s(run.files)
    text = _duration(wall)
    if wall > 1.25 * busy + 60 and busy:
        text += f", {_duration(busy)} of it in steps"
    return Cell(text, {"wall_s": wall, "busy_s": busy})


def _step_time(run: Reading) -> Cell:
    steps = list(run.series("time/train_step").values())
    return Cell(f"{median(steps):.3g} s", {"seconds": median(steps)}) if steps else _NOTHING


def _interval(found: Interval) -> dict[str, Any]:
    return {
        "mean": found.mean,
        "low": None if math.isnan(found.low) else found.low,
        "high": None if math.isnan(found.high) else found.high,
        "tasks": found.num_tasks,
    }


def _count(number: float) -> str:
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.3g}{name}"
    return f"{number:.0f}"


def _duration(seconds: float) -> str:
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 120 else f"{seconds:.0f} s"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
