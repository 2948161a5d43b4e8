"""A run folder, read as it is: running, finished or killed, whole or damaged."""

import json
import re
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..config import metrics_log, recorded_config
from ..config.files import SCHEMA_VERSION
from ..config.schema import RunConfig

IDENTITY_FILE = "identity.json"
FINISHED_FILE = "finished"
HEARTBEAT_FILE = "heartbeat.json"
_ROUTINE = re.compile(r"\S+ (ready after .*|finished)|the run ended with exit code 0")
# The supervisor beats every 10 s; a machine under load may be late.
HEARTBEAT_LOST_S = 60.0

Row = dict[str, Any]


@dataclass
class RunFiles:
    """A run folder. Files are read when asked for; what cannot be read is named in `warnings`."""

    path: Path
    config: RunConfig
    warnings: list[str] = field(default_factory=list)

    @classmethod
    def open(cls, run_dir: str | Path) -> "RunFiles":
        """A run of this code or of older code. Raises UserError when `run_dir` is no run folder."""
        config, note = recorded_config(run_dir)
        warnings = [f"It was made by other code: {note}."] if note else []
        return cls(Path(run_dir).resolve(), config, warnings)

    @property
    def name(self) -> str:
        """The run's name: that of its folder."""
        return self.path.name

    @cached_property
    def identity(self) -> dict[str, Any]:
        """identity.json, or {} with a warning."""
        return self._json(IDENTITY_FILE, "the run's identity is unknown")

    @cached_property
    def records(self) -> dict[str, dict[int, metrics_log.Record]]:
        """source -> step -> record, as metrics_log.records; {} with a warning if not readable."""
        try:
            return metrics_log.records(self.path, self.warn)
        except OSError as error:
            told = f"{metrics_log.METRICS_FILE} is not readable, so its metrics are unknown"
            self.warn(f"{told}: {error.strerror}")
            return {}

    @property
    def metrics(self) -> dict[str, dict[int, dict[str, float]]]:
        """source -> step -> metrics."""
        return {
            source: {step: record.metrics for step, record in steps.items()}
            for source, steps in self.records.items()
        }

    @cached_property
    def trainer(self) -> dict[int, dict[str, float]]:
        """Step -> the trainer's metrics, each of its newest definition alone, as :meth:`series`."""
        found: dict[int, dict[str, float]] = {}
        records = self.records.get("trainer", {}).values()
        for name in dict.fromkeys(name for record in records for name in record.metrics):
            for step, value in self.series(name).items():
                found.setdefault(step, {})[name] = value
        return found

    def definition(self, name: str) -> int | None:
        """Version of a metric's definition, the newest in the run; None where it is not there."""
        versions = (record.definition(name) for _, record in self._having(name))
        return max(versions, default=None)

    def series(self, name: str) -> dict[int, float]:
        """Step -> value of a metric, whoever wrote it, steps rising.

        Of a metric whose definition changed within the run, only what follows the newest one; a
        warning says so.
        """
        newest = self.definition(name)
        found, older = {}, 0
        for step, record in self._having(name):
            if record.definition(name) == newest:
                found[step] = record.metrics[name]
            else:
                older += 1
        if older:
            self.warn(f"{older} steps of {name} follow an older definition of it and are left out")
        return dict(sorted(found.items()))

    def _having(self, name: str) -> Iterator[tuple[int, metrics_log.Record]]:
        for steps in self.records.values():
            for step, record in steps.items():
                if name in record.metrics:
                    yield step, record

    @property
    def state(self) -> str:
        """finished; running, while its supervisor's heart beats; else stopped."""
        if (self.path / FINISHED_FILE).exists():
            return "finished"
        if not (self.path / HEARTBEAT_FILE).exists():
            return "stopped"
        beat = self._json(HEARTBEAT_FILE, "whether the run is alive is unknown")
        alive = beat.get("phase") in ("starting", "running", "stopping")
        at = beat.get("time")
        if beat and not isinstance(at, int | float):
            self.warn(f"{HEARTBEAT_FILE} has no time, so whether the run is alive is unknown")
            return "stopped"
        # Either way: a clock may be set back.
        recent = abs(time.time() - (at or 0.0)) < HEARTBEAT_LOST_S
        return "running" if alive and recent else "stopped"

    def events(self) -> list[tuple[str, str]]:
        """When and what the supervisors noted, save what every healthy run has; oldest first."""
        found = []
        for log in self.path.glob("logs/supervisor*.log"):
            for line in log.read_text(errors="replace").splitlines():
                day, _, rest = line.partition(" ")
                at, _, text = rest.partition(" ")
                if text and not _ROUTINE.fullmatch(text):
                    found.append((f"{day} {at}", text))
        return sorted(found, key=lambda event: event[0])

    def steps(self, kind: str) -> list[int]:
        """Steps that have a file; `kind` is rollouts, train or eval."""
        numbers = (p.stem.removeprefix("step_") for p in self.path.glob(f"{kind}/step_*.parquet"))
        return sorted(int(number) for number in numbers if number.isdigit())

    def rows(self, kind: str, step: int, columns: Sequence[str]) -> list[Row]:
        """One dict a sample; [] with a warning for a file that is damaged or lacks any of them."""
        return self._whole(kind, step, columns)

    def columns(self, kind: str, step: int, names: Sequence[str]) -> dict[str, Sequence[Any]]:
        """Column -> a value a sample, of those of `names` that the file has; lists of numbers as
        Rows. {} with a warning if the file is damaged, without one if it is not there.
        """
        if not self._file(kind, step).exists():
            return {}
        table = self.table(kind, step, names)
        if table is None:
            return {}
        return {name: _values(table[name].combine_chunks()) for name in table.column_names}

    def trained(self, step: int) -> dict[str, Any]:
        """Sample -> [T] the trainer's log-probs before the update; {} where it is not trained, with
        a warning where the file does not have them."""
        found = self.columns("train", step, ("sample_id", "trainer_logprobs"))
        if found.keys() == {"sample_id", "trainer_logprobs"}:
            return dict(zip(found["sample_id"], found["trainer_logprobs"], strict=True))
        if found:
            self.warn(f"train/{self._file('train', step).name} lacks log-probs; it is left out")
        return {}

    def sample(self, kind: str, step: int, sample_id: str, columns: Sequence[str]) -> Row | None:
        """The `columns` of one sample; None if it is not there, or as :meth:`rows` leaves out."""
        rows = self._whole(kind, step, columns, [("sample_id", "==", sample_id)])
        return next(iter(rows), None)

    def stats(self, kind: str, step: int) -> dict[str, float]:
        """What the driver noted beside the rows, as samples dropped by reason; {} if nothing."""
        try:
            metadata = pq.read_metadata(self._file(kind, step)).metadata or {}
            found = json.loads(metadata.get(b"stats", b"{}"))
            return found if isinstance(found, dict) else {}
        except (OSError, pa.ArrowException, ValueError):
            return {}

    def _whole(
        self, kind: str, step: int, columns: Sequence[str], filters: list[Any] | None = None
    ) -> list[Row]:
        table = self.table(kind, step, columns, filters)
        if table is None or self.lacks(kind, step, table.column_names, columns):
            return []
        return table.to_pylist()

    def table(
        self,
        kind: str,
        step: int,
        columns: Sequence[str] | None = None,
        filters: list[Any] | None = None,
    ) -> pa.Table | None:
        """A step file with those of `columns`, by default all, that it has.

        None, with a warning, where it is damaged, or of another schema version, run or step.
        """
        path = self._file(kind, step)
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                self._check(file.schema_arrow.metadata or {}, step)
                known = file.schema_arrow.names
                wanted = known if columns is None else [name for name in columns if name in known]
                if filters is None:  # read_table imports pandas, which takes longer than all files
                    return file.read(columns=wanted)
            return pq.read_table(
                path, columns=wanted, filters=filters, page_checksum_verification=True
            )
        except (OSError, pa.ArrowException, ValueError) as error:  # names that are no UTF-8
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            self.warn(f"{path.relative_to(self.path)} is not readable and left out: {reason}")
            return None

    def lacks(self, kind: str, step: int, known: Collection[str], names: Sequence[str]) -> bool:
        """Whether the columns `known` of a step file are not all of `names`; it is then named."""
        missing = [name for name in names if name not in known]
        if missing:
            self.leave_out(kind, step, f"lacks {', '.join(missing)}")
        return bool(missing)

    def leave_out(self, kind: str, step: int, why: str) -> None:
        """Names a step file that tells nothing; `why` goes on after its name."""
        self.warn(f"{self._file(kind, step).relative_to(self.path)} {why}; left out")

    def _check(self, metadata: dict[bytes, bytes], step: int) -> None:
        """Raises ValueError for a step file of another schema version, run or step."""
        for name, expected in (
            ("schema_version", SCHEMA_VERSION),
            ("identity", self.identity.get("hash")),
            ("step", str(step)),
        ):
            told = metadata.get(name.encode(), b"none").decode()
            if expected is not None and told != expected:
                raise ValueError(f"its {name.replace('_', ' ')} is {told}, not {expected}")

    def _file(self, kind: str, step: int) -> Path:
        return self.path / kind / f"step_{step:06d}.parquet"

    def _json(self, name: str, consequence: str) -> dict[str, Any]:
        try:
            content = json.loads((self.path / name).read_text())
            if isinstance(content, dict):
                return content
            reason = "it holds no keys and values"
        except (OSError, ValueError) as error:
            reason = str(error)
        self.warn(f"{name} is not readable, so {consequence}: {reason}")
        return {}

    def warn(self, text: str) -> None:
        """Names what cannot be told, once."""
        if text not in self.warnings:
            self.warnings.append(text)


class Rows(Sequence[Any]):
    """Arrays, [T] each, that are parts of one: no row is copied, and nor is the whole of them."""

    def __init__(self, flat: NDArray[Any], offsets: NDArray[np.integer]) -> None:
        self.flat = flat
        """All of them, one after another."""
        self.offsets = offsets
        """[rows + 1] where each begins in `flat`, and the end of the last."""

    def __len__(self) -> int:
        """Rows."""
        return len(self.offsets) - 1

    def __getitem__(self, place: Any) -> Any:
        """A row."""
        place = range(len(self))[place]
        return self.flat[self.offsets[place] : self.offsets[place + 1]]


def _values(column: pa.Array) -> Sequence[Any]:
    """A value a row; lists of numbers are Rows, made without an object a number."""
    if not (pa.types.is_list(column.type) and pa.types.is_primitive(column.type.value_type)):
        values: list[Any] = column.to_pylist()
        return values
    offsets = column.offsets.to_numpy()
    flat = column.values.to_numpy(zero_copy_only=False)[offsets[0] : offsets[-1]]
    return Rows(flat, offsets - offsets[0])


def definitions_differ(runs: Sequence[RunFiles], name: str) -> str | None:
    """Why a metric of several runs may not share an axis or a column; None where it may."""
    versions = [(run.name, version) for run in runs if (version := run.definition(name))]
    if len({version for _, version in versions}) < 2:
        return None
    told = ", ".join(f"{version} in {run}" for run, version in versions)
    return f"{name} has different definitions ({told}; docs/metrics.md), so it is not compared"
