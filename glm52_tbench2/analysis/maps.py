"""What the report's maps show: tasks by step, and giant turns that come again, by step."""

from collections.abc import Iterator, Sequence
from typing import Any

from .health import Health, health
from .run_files import Row, RunFiles
from .sentinel.files import Alarm
from .sentinel.history import Family
from .sentinel.watch import judge
from .stats import finite, finite_mean

MOST_FAMILIES = 60
_COLUMNS = ("sample_id", "task_id", "reward", "advantage", "end_reason", "truncated")


def maps(run: RunFiles) -> tuple[dict[str, Any], Health]:
    """The maps as plain values, and what is said of the run's health.

    `steps`; `judged`: how many of them the sentinel can judge; `samples`: step -> a list of [id,
    task, reward, advantage, end] a sample; `tasks`: a row a task, the one that is pushed down most
    first and the unjudged last, with its cells by step (`reward`, `truncated` and, of a trained
    step, `pull` and `drift`, see docs/metrics.md); `families`: a row a family of near-identical
    turns near the cap that come in two steps or more, the most frequent first. A number that is not
    finite is None, and a cell's reward is of those that are.
    """
    alarms, history = judge(run)
    rows = {step: run.rows("rollouts", step, _COLUMNS) for step in run.steps("rollouts")}
    cells: dict[str, dict[int, dict[str, float | None]]] = {}
    for step, of_step in rows.items():
        for task in dict.fromkeys(row["task_id"] for row in of_step):
            mine = [row for row in of_step if row["task_id"] == task]
            cells.setdefault(task, {})[step] = {
                "reward": finite_mean(row["reward"] for row in mine),
                "truncated": sum(row["truncated"] for row in mine) / len(mine),
            }
    pulls = dict.fromkeys(cells, 0.0)
    for task, visits in history.visits.items():
        for step, visit in visits:
            if step in cells.get(task, {}):
                pull = finite(visit.pull)
                cells[task][step] |= {"pull": pull, "drift": finite(visit.drift)}
                pulls[task] += (pull or 0.0) * visit.tokens
    order = sorted(cells, key=lambda task: (task not in history.visits, pulls[task]))
    tasks = [{"task": task, "cells": cells[task]} for task in order]
    repeated = sorted(
        (family for family in history.families if len(family.steps) > 1),
        key=lambda family: (-len(family.steps), -len(family.members)),
    )
    found: dict[str, Any] = {
        "steps": list(rows),
        "judged": len(history.steps),
        "samples": {step: [_sample(row) for row in of_step] for step, of_step in rows.items()},
        "tasks": tasks,
        "families": [_family(family) for family in repeated[:MOST_FAMILIES]],
        "more_families": max(0, len(repeated) - MOST_FAMILIES),
    }
    return found, health(run, alarms, len(history.steps))


def _sample(row: Row) -> list[Any]:
    cut = ", cut" if row["truncated"] else ""
    end = f"{row['end_reason']}{cut}"
    numbers = finite(row["reward"]), finite(row["advantage"])
    return [row["sample_id"], row["task_id"], *numbers, end]


def _family(family: Family) -> dict[str, Any]:
    cells: dict[int, dict[str, Any]] = {}
    for step in family.steps:
        members = [turn for at, turn in family.members if at == step]
        cells[step] = {
            "count": len(members),
            "advantage": finite_mean(turn.advantage for turn in members),
            "drift": finite(family.drift(step)),
            "turns": [[turn.sample_id, turn.turn] for turn in members],
        }
    lengths = [turn.tokens for _, turn in family.members]
    return {
        "name": ", ".join(family.tasks),
        "tokens": round(sum(lengths) / len(lengths)),
        "since": family.steps[0],
        "cells": cells,
    }


def by_importance(found: dict[str, Any], alarms: Sequence[Alarm]) -> Iterator[tuple[int, str]]:
    """Every sample of the run, those first that a reader of an unhealthy run asks for: giant turns
    that come again, newest first, then the steps of alarms, then from the newest step backwards."""
    for family in found["families"]:
        for step, cell in reversed(family["cells"].items()):
            yield from ((step, sample) for sample, _ in cell["turns"])
    steps = [alarm.step for alarm in alarms if alarm.step in found["samples"]]
    for step in [*steps, *reversed(found["steps"])]:
        yield from ((step, sample[0]) for sample in found["samples"][step])
