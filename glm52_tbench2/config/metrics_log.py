"""metrics.jsonl: one line a step and source, appended by the process that computed it."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .files import append_line, read_lines

METRICS_FILE = "metrics.jsonl"

DEFINITIONS: dict[str, int] = {"time/train_checkpoint": 2}
"""Version of a metric's definition, of those that have changed since their first, which is 1.

Whoever changes what a name means raises it here: curves of two versions are then never drawn on
one axis.
"""


@dataclass(frozen=True)
class Record:
    """What one source computed of one step."""

    metrics: dict[str, float]
    definitions: dict[str, int]
    """Version of a metric's definition where it is not 1."""
    time: float
    """Unix time of the record, seconds."""

    def definition(self, name: str) -> int:
        """Version of the definition behind a metric of this record."""
        return self.definitions.get(name, 1)


def append(run_dir: Path, step: int, source: str, metrics: Mapping[str, float]) -> None:
    """Appends one record: its step, source, time, metrics and those definitions that are not 1.

    Under a lock, so that records of several processes and nodes never interleave.
    After a resume a (step, source) may be there twice: the last one counts.
    """
    record = {"step": step, "source": source, "time": time.time(), "metrics": dict(metrics)}
    if changed := {name: DEFINITIONS[name] for name in metrics if name in DEFINITIONS}:
        record["definitions"] = changed
    append_line(run_dir / METRICS_FILE, json.dumps(record))


def records(
    run_dir: Path, warn: Callable[[str], None] | None = None
) -> dict[str, dict[int, Record]]:
    """source -> step -> the last record of each; a line that is no record is left out, of which
    `warn` is told, as is a metric that is no number. Raises OSError where they cannot be read.
    """
    found: dict[str, dict[int, Record]] = {}
    for source, step, record in read_lines(run_dir / METRICS_FILE, _record, warn):
        found.setdefault(source, {})[step] = record
    return found


def _record(read: Any) -> tuple[str, int, Record]:
    metrics = {
        name: value
        for name, value in dict(read["metrics"]).items()
        if isinstance(value, int | float)
    }
    definitions = dict(read.get("definitions") or {})
    record = Record(metrics, definitions, float(read["time"]))
    return str(read["source"]), int(read["step"]), record


def read(run_dir: Path) -> dict[str, dict[int, dict[str, float]]]:
    """source -> step -> metrics, as :func:`records`. Raises OSError as it does."""
    return {
        source: {step: record.metrics for step, record in steps.items()}
        for source, steps in records(run_dir).items()
    }
