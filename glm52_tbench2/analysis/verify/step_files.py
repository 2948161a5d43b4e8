"""Step files as columns of numbers, read whole and checked by their page checksums."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ...config.files import SCHEMA_VERSION

TOKEN_COLUMNS = ("tokens", "loss_mask", "rollout_logprobs", "weight_versions")
TRAIN_COLUMNS = ("trainer_logprobs", "entropy")

Array = npt.NDArray[Any]


class Damaged(Exception):
    """A file that is not what was written, or not this run's; the text names it and says why."""


@dataclass(frozen=True)
class Lists:
    """A column of lists: their values one after another, and where each row's begin."""

    values: Array
    offsets: npt.NDArray[np.int64]
    """(rows + 1,)"""

    def row(self, index: int) -> Array:
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def row_of(self, position: int) -> int:
        """The row that holds the value at `position`."""
        return int(np.searchsorted(self.offsets, position, side="right")) - 1


class StepFile:
    """One step file. Columns become numbers when asked for."""

    def __init__(self, run_dir: Path, kind: str, step: int, identity: str | None) -> None:
        """Reads it, every page against its checksum. `identity`: of its run, if that is known.

        Raises Damaged.
        """
        self.kind, self.step = kind, step
        self.name = f"{kind}/step_{step:06d}.parquet"
        try:
            with pq.ParquetFile(run_dir / self.name, page_checksum_verification=True) as file:
                self.table = file.read()
            metadata = self.table.schema.metadata or {}
            version = metadata[b"schema_version"].decode()
            owner = metadata[b"identity"].decode()
            written = int(metadata[b"step"])
        except FileNotFoundError:
            raise Damaged(f"{self.name} is missing") from None
        except KeyError as error:
            raise Damaged(f"{self.name} is no step file: it does not say its {error}") from None
        except (OSError, ValueError, pa.ArrowException) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            raise Damaged(f"{self.name} is damaged: {reason}") from error
        if version != SCHEMA_VERSION:
            raise Damaged(
                f"{self.name} has schema version {version}; this code reads {SCHEMA_VERSION}"
            )
        if identity is not None and owner != identity:
            raise Damaged(f"{self.name} belongs to a run of identity {owner}")
        if written != step:
            raise Damaged(f"{self.name} holds step {written}")

    @property
    def rows(self) -> int:
        return self.table.num_rows

    def has(self, *names: str) -> None:
        """Raises Damaged when a column is not there."""
        if missing := [name for name in names if name not in self.table.column_names]:
            raise Damaged(f"{self.name} lacks the columns {', '.join(missing)}")

    def column(self, name: str) -> pa.Array:
        found = self.table[name].combine_chunks()
        # Of no rows there are no chunks to combine.
        return found if isinstance(found, pa.Array) else pa.array([], self.table[name].type)

    def lists(self, name: str) -> Lists:
        """A column of lists of numbers."""
        array = self.column(name)
        values = array.flatten().to_numpy(zero_copy_only=False)
        return Lists(values, _offsets(array))

    def numbers(self, name: str) -> Array:
        """A column of numbers or truth values."""
        return self.column(name).to_numpy(zero_copy_only=False)

    @cached_property
    def turns(self) -> pa.StructArray:
        """Every sample's turns, one after another."""
        return self.column("turns").flatten()

    @cached_property
    def turn_offsets(self) -> npt.NDArray[np.int64]:
        """Where each sample's turns begin."""
        return _offsets(self.column("turns"))

    @cached_property
    def sample_ids(self) -> list[str]:
        return self.column("sample_id").to_pylist()

    def sample(self, row: int) -> str:
        """How a report names a sample."""
        if "task_id" not in self.table.column_names:
            return f"sample {self.sample_ids[row]}"
        return f"sample {self.sample_ids[row]} (task {self.table['task_id'][row].as_py()})"

    def place(self, row: int, position: int) -> str:
        """How a report names the token at `position` of a sample, 0-based."""
        first = int(self.turn_offsets[row])
        starts, ends = (
            self.turns.field(name).to_numpy()[first : self.turn_offsets[row + 1]]
            for name in ("start", "end")
        )
        turn = int(np.searchsorted(starts, position, side="right"))
        if turn == 0:
            return f"token {position} (prompt)"
        where = "generated" if position < ends[turn - 1] else "observation"
        return f"turn {turn}, token {position} ({where})"


def _offsets(array: pa.ListArray) -> npt.NDArray[np.int64]:
    lengths = array.value_lengths().fill_null(0).to_numpy()
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
