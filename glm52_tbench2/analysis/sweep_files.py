"""A sweep's folder: which points it has, and where each stands.

SWEEP/sweep.json is written once, before the first point. SWEEP/progress.jsonl gets a line when a
point starts and when it ends, so that a failed point can be told from one that was stopped.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path

from ..config.compose import CONFIG_FILE
from ..config.errors import UserError
from ..config.files import append_line
from .run_files import FINISHED_FILE, HEARTBEAT_FILE, RunFiles

SWEEP_FILE = "sweep.json"
PROGRESS_FILE = "progress.jsonl"
STOPPED_BY_SIGNAL = 128


@dataclass(frozen=True)
class SweepPoint:
    """One run of a sweep, as planned."""

    path: Path
    overrides: list[str]
    """What varies, as it was written."""

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def values(self) -> dict[str, str]:
        """What varies: key -> value."""
        return dict(map(assignment, self.overrides))


@dataclass(frozen=True)
class End:
    """How the last run of a point ended."""

    code: int | None
    """None: it was started, and nothing is known of its end."""
    text: str
    """Why, for a person; empty when it finished."""


@dataclass(frozen=True)
class SweepFiles:
    """A sweep's folder, read as it is."""

    path: Path
    base: list[str]
    """Overrides that all points share."""
    points: list[SweepPoint]

    @classmethod
    def open(cls, sweep_dir: str | Path) -> "SweepFiles":
        """Raises UserError when `sweep_dir` is not a sweep's folder, or is damaged."""
        path = Path(sweep_dir).resolve()
        try:
            content = json.loads((path / SWEEP_FILE).read_text())
            points = [
                SweepPoint(path / point["folder"], list(point["overrides"]))
                for point in content["points"]
            ]
            return cls(path, list(content["base"]), points)
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(
                f"{sweep_dir} is not a sweep's folder: it has no {SWEEP_FILE}."
            ) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path / SWEEP_FILE} is damaged ({error}); restore it.") from error

    @property
    def varies(self) -> list[str]:
        """Keys that vary, in the order they were written."""
        return list(dict.fromkeys(key for point in self.points for key in point.values))

    @property
    def ends(self) -> dict[str, End]:
        """Point -> its last end, of those that were started."""
        found = {}
        try:
            lines = (self.path / PROGRESS_FILE).read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return {}
        for line in lines:
            try:
                record = json.loads(line)
                found[str(record["point"])] = End(record["code"], str(record["text"]))
            except (ValueError, KeyError, TypeError):  # cut short by a kill
                continue
        return found

    def status(self, point: SweepPoint) -> str:
        """finished, running, failed, stopped, waiting (never started) or missing (no folder)."""
        if not (point.path / CONFIG_FILE).exists():
            return "missing"
        if (point.path / FINISHED_FILE).exists():
            return "finished"
        begun = (point.path / HEARTBEAT_FILE).exists()
        if begun and RunFiles.open(point.path).state == "running":
            return "running"
        end = self.ends.get(point.name)
        if end is not None and end.code is not None and 0 < end.code < STOPPED_BY_SIGNAL:
            return "failed"
        return "stopped" if begun or end is not None else "waiting"


def sweep_of(run_dir: Path) -> str | None:
    """Name of the sweep whose point `run_dir` is; None for a run of its own."""
    return run_dir.parent.name if (run_dir.parent / SWEEP_FILE).exists() else None


def note(sweep_dir: Path, point: str, code: int | None, text: str = "") -> None:
    """Appends to progress.jsonl that `point` starts (None) or has ended with `code`."""
    record = {"point": point, "time": time.time(), "code": code, "text": text}
    append_line(sweep_dir / PROGRESS_FILE, json.dumps(record))


def assignment(override: str) -> tuple[str, str]:
    """Key and value of an override, without the marks that add, force or delete it."""
    key, _, value = override.partition("=")
    return key.lstrip("+~"), value.strip("'\"")
