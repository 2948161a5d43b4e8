"""What the files of a running job say about its progress, read as they grow."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..analysis.run_files import FINISHED_FILE
from ..analysis.sentinel.files import alarms
from ..config.metrics_log import METRICS_FILE
from ..rollout.progress import PROGRESS_FILE
from ..trainer.paused import paused

_STEPS_TIMED = 10


@dataclass(frozen=True)
class Phase:
    """What the driver is doing, from progress.json; paused where that keeps it waiting."""

    name: str
    """start, wait (the trainer trains), paused, eval, generate or done."""
    step: int
    done: int
    """Episodes with a verdict."""
    total: int
    """Episodes the phase needs."""


class RunNumbers:
    """Metrics by source and step, and times of the steps trained since this was made."""

    def __init__(self, run_dir: Path, steps: int) -> None:
        self.steps = steps
        self.metrics: dict[str, dict[int, dict[str, float]]] = {}
        self._run_dir = run_dir
        self._offset = 0
        self._before = self._progress()
        self._step_times: list[tuple[int, float]] = []
        self.read_new()  # of a run that goes on
        self._step_times.clear()

    def read_new(self) -> list[tuple[str, int]]:
        """(source, step) of the records written since the last call."""
        try:
            with (self._run_dir / METRICS_FILE).open("rb") as file:
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [added for line in whole.splitlines() if (added := self._add(line))]

    def _add(self, line: bytes) -> tuple[str, int] | None:
        try:
            record: dict[str, Any] = json.loads(line)
            source, step = str(record["source"]), int(record["step"])
            self.metrics.setdefault(source, {})[step] = record["metrics"]
            if source == "trainer":
                self._step_times.append((step, float(record["time"])))
        except (ValueError, KeyError, TypeError, OverflowError):
            return None
        return source, step

    def alarms(self, source: str, step: int) -> list[str]:
        """What the sentinel said with its record of a step, or of the wait after it, by line."""
        waiting = {"sentinel": False, "stalled": True}.get(source)
        found = [
            alarm
            for alarm in (alarms(self._run_dir) if waiting is not None else [])
            if alarm.step == step and (alarm.sign == "stalled") == waiting
        ]
        return [f"alarm after step {step}, {one.sign}: {one.sentence}" for one in found]

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end, and well."""
        return (self._run_dir / FINISHED_FILE).exists()

    @property
    def paused(self) -> str:
        """How a paused run goes on; "" of one that is not paused or has nothing left to train."""
        return paused(self._run_dir) if self.trained < self.steps else ""

    def phase(self) -> Phase | None:
        """What the driver is doing; None when it has not said so since this was made."""
        try:
            text = self._progress()
            if text == self._before:
                return None
            content = json.loads(text)
            name = str(content["phase"])
            return Phase(
                "paused" if name == "wait" and self.paused else name,
                int(content["step"]),
                int(content["samples_done"]),
                int(content["samples_total"]),
            )
        except (ValueError, KeyError, TypeError):
            return None

    def _progress(self) -> str:
        try:
            return (self._run_dir / PROGRESS_FILE).read_text()
        except OSError:
            return ""

    @property
    def trained(self) -> int:
        """Last step the trainer has logged; 0 before the first."""
        return max(self.metrics.get("trainer", {}), default=0)

    def latest(self, source: str, name: str, step: int | None = None) -> float | None:
        """The metric at `step`, or at the newest step that has it."""
        steps = self.metrics.get(source, {})
        if step is not None:
            return steps.get(step, {}).get(name)
        found = [at for at in steps if name in steps[at]]
        return steps[max(found)][name] if found else None

    def series(self, source: str, name: str) -> list[tuple[int, float]]:
        """(step, value), steps rising."""
        steps = self.metrics.get(source, {})
        return sorted((at, values[name]) for at, values in steps.items() if name in values)

    def seconds_left(self) -> float | None:
        """From the last steps' pace, evaluations among them included; None before two steps."""
        times = self._step_times[-_STEPS_TIMED - 1 :]
        if len(times) < 2 or times[-1][0] <= times[0][0]:
            return None
        (first, began), (last, ended) = times[0], times[-1]
        pace = (ended - began) / (last - first)
        return max(0.0, pace * (self.steps - last) - (time.time() - ended))
