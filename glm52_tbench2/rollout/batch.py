"""Step files: the batch a trainer consumes, the dump a person reads and the input of a replay.

One parquet file a step, one row a sample, written whole or not at all. pandas, polars and DuckDB
read it without this project; :func:`read_batch` adds the checks a trainer needs.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..config.files import SCHEMA_VERSION, atomic_path

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]


class BatchError(Exception):
    """A step file that must not be used; the message names the file and the reason."""


class CorruptBatchError(BatchError):
    """The file is half-written, damaged, or contradicts itself: nothing in it can be trusted."""


class ForeignBatchError(BatchError):
    """The file is whole, but of another schema version, another run or another step."""


@dataclass(slots=True)
class Turn:
    """One turn of the policy and what the sandbox answered."""

    start: int
    """First generated token, as an index into the sample's tokens."""
    end: int
    """One past the last generated token."""
    finish: str
    """stop or length, as the engine said."""
    generate_s: float
    """Seconds in the engine."""
    cached_tokens: int = 0
    """Tokens of the turn's prompt that the engine had in its prefix cache."""
    command: str | None = None
    """What was run; None when the turn held no command or was not to be obeyed."""
    exit_code: int | None = None
    """Exit status of the command; None when there is none."""
    exec_s: float = 0.0
    """Seconds in the sandbox."""
    observation: str = ""
    """What the policy was shown, as text; its tokens follow `end` unless the episode ended."""


@dataclass(slots=True, eq=False)
class Sample:
    """One episode with its verdict. The four token arrays have the same length T."""

    sample_id: str
    """Unique in a run: step, group and index."""
    step: int
    """Training step (1-based) that consumes it; of an evaluation: steps trained before it."""
    group: int
    """Which draw of the step; samples of one group share a task."""
    index: int
    """Position in its group."""
    task_id: str
    end_reason: str
    """A value of :class:`glm52_tbench2.rollout.outcome.EndReason`."""
    reward: float
    """The verdict; NaN where there is none (such samples are never written)."""
    truncated: bool
    """Cut off by the per-turn cap or the session budget."""
    tokens: Int32
    """(T,) prompt, turns and observations."""
    loss_mask: Bool
    """(T,) True on generated tokens."""
    rollout_logprobs: Float32
    """(T,) log-softmax(logits / temperature) of generated tokens, 0 elsewhere."""
    weight_versions: Int32
    """(T,) weight version that generated a token, -1 elsewhere."""
    turns: list[Turn]
    prompt_tokens: int
    """Tokens before the first turn."""
    generate_s: float = 0.0
    """Seconds in the engine, all turns."""
    sandbox_s: float = 0.0
    """Seconds starting the sandbox and running commands."""
    verify_s: float = 0.0
    """Seconds in the verifier."""
    total_s: float = 0.0
    """Wall clock from the first call to the verdict, seconds."""
    error: str | None = None
    """What went wrong, where something did."""
    penalty: float = 0.0
    """Overlong penalty (<= 0) added to the reward before advantages are taken."""
    advantage: float = 0.0
    """Advantage of every generated token; 0 in an evaluation."""
    counted_tokens: int | None = None
    """Generated tokens as an endpoint counts them that returns text; in no column of a file."""
    discarded_tokens: int = 0
    """Generated tokens of an answer that was not taken, as at the wall clock; in no column."""

    @property
    def num_generated(self) -> int:
        """Tokens the policy generated."""
        return int(self.loss_mask.sum())


_TURN = pa.struct(
    [
        pa.field("start", pa.int32()),
        pa.field("end", pa.int32()),
        pa.field("finish", pa.string()),
        pa.field("generate_s", pa.float32()),
        pa.field("cached_tokens", pa.int32()),
        pa.field("command", pa.string()),
        pa.field("exit_code", pa.int32()),
        pa.field("exec_s", pa.float32()),
        pa.field("observation", pa.string()),
    ]
)
SCHEMA = pa.schema(
    [
        pa.field("sample_id", pa.string()),
        pa.field("step", pa.int32()),
        pa.field("group", pa.int32()),
        pa.field("index", pa.int32()),
        pa.field("task_id", pa.string()),
        pa.field("end_reason", pa.string()),
        pa.field("reward", pa.float32()),
        pa.field("penalty", pa.float32()),
        pa.field("advantage", pa.float32()),
        pa.field("truncated", pa.bool_()),
        pa.field("tokens", pa.list_(pa.int32())),
        pa.field("loss_mask", pa.list_(pa.bool_())),
        pa.field("rollout_logprobs", pa.list_(pa.float32())),
        pa.field("weight_versions", pa.list_(pa.int32())),
        pa.field("turns", pa.list_(_TURN)),
        pa.field("prompt_tokens", pa.int32()),
        pa.field("generate_s", pa.float32()),
        pa.field("sandbox_s", pa.float32()),
        pa.field("verify_s", pa.float32()),
        pa.field("total_s", pa.float32()),
        pa.field("error", pa.string()),
    ]
)
TOKEN_COLUMNS = ("tokens", "loss_mask", "rollout_logprobs", "weight_versions")


@dataclass(frozen=True)
class BatchInfo:
    """What a step file says about itself."""

    schema_version: str
    identity: str
    step: int
    stats: dict[str, float] = field(default_factory=dict)
    """What making the batch cost and is not in its rows, as wasted tokens and replaced samples."""


def batch_path(run_dir: Path, kind: str, step: int) -> Path:
    """Where the file of `step` lies; `kind` is rollouts, train or eval."""
    return run_dir / kind / f"step_{step:06d}.parquet"


def write_batch(
    path: Path,
    samples: Sequence[Sample],
    identity: str,
    step: int,
    stats: Mapping[str, float] | None = None,
) -> None:
    """Writes `samples` in order of (group, index), whole or not at all.

    Raises ValueError when a sample contradicts itself: nothing is written then.
    """
    rows = sorted(samples, key=lambda s: (s.group, s.index))
    for sample in rows:
        check_sample(sample, step)
    metadata = {
        "schema_version": SCHEMA_VERSION,
        "identity": identity,
        "step": str(step),
        "stats": json.dumps(dict(stats or {}), sort_keys=True),
    }
    table = to_table(rows).replace_schema_metadata(metadata)
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)


def to_table(samples: Sequence[Sample]) -> pa.Table:
    """A row a sample, with the columns of a step file."""
    columns = {
        name: [
            [asdict(turn) for turn in sample.turns] if name == "turns" else getattr(sample, name)
            for sample in samples
        ]
        for name in SCHEMA.names
    }
    return pa.Table.from_pydict(columns, schema=SCHEMA)


def read_info(path: Path) -> BatchInfo:
    """Reads the file's metadata alone.

    Raises CorruptBatchError when it cannot be read, ForeignBatchError on another schema version.
    """
    try:
        metadata = pq.read_metadata(path).metadata or {}
        version = metadata[b"schema_version"].decode()
        if version != SCHEMA_VERSION:
            raise ForeignBatchError(
                f"{path} has schema version {version}; this code reads {SCHEMA_VERSION}"
            )
        return BatchInfo(
            schema_version=version,
            identity=metadata[b"identity"].decode(),
            step=int(metadata[b"step"]),
            stats=json.loads(metadata.get(b"stats", b"{}")),
        )
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise CorruptBatchError(f"{path} is not a whole step file: {error}") from error


def read_batch(path: Path, identity: str | None = None, step: int | None = None) -> list[Sample]:
    """Reads and checks every sample of a step file, in its order of (group, index).

    `identity` and `step`, where given, must be those the file was written with.
    Raises FileNotFoundError, CorruptBatchError or ForeignBatchError, each naming the file.
    """
    table = _read_table(path, SCHEMA.names, identity, step)
    if not table.schema.equals(SCHEMA):
        raise CorruptBatchError(f"{path} has other columns than a step file")
    try:
        return from_table(table, read_info(path).step)
    except ValueError as error:
        raise CorruptBatchError(f"{path} contradicts itself: {error}") from error


def from_table(table: pa.Table, step: int) -> list[Sample]:
    """The samples of a table with the columns of a step file.

    Raises ValueError when one contradicts itself or is not of `step`.
    """
    columns: dict[str, Sequence[Any]] = {
        name: _rows(table[name]) if name in TOKEN_COLUMNS else table[name].to_pylist()
        for name in SCHEMA.names
    }
    names = [f.name for f in fields(Sample) if f.name in columns]
    samples = []
    for row in zip(*(columns[name] for name in names), strict=True):
        values = dict(zip(names, row, strict=True))
        values["turns"] = [Turn(**turn) for turn in values["turns"]]
        samples.append(Sample(**values))
        check_sample(samples[-1], step)
    return samples


def read_columns(
    path: Path,
    names: Sequence[str],
    identity: str | None = None,
    step: int | None = None,
) -> dict[str, np.ndarray | list[np.ndarray]]:
    """Reads the columns `names` alone, a row a sample.

    A scalar column becomes one array (N,); a list column of numbers becomes a list of N arrays,
    each with its own length. Works on rollouts/, eval/ and train/ files of one schema version.
    Raises FileNotFoundError, CorruptBatchError or ForeignBatchError, each naming the file.
    """
    table = _read_table(path, names, identity, step)
    return {
        name: _rows(table[name])
        if pa.types.is_list(table[name].type)
        else np.asarray(table[name].to_pylist())
        if pa.types.is_string(table[name].type)
        else table[name].to_numpy()
        for name in names
    }


def _read_table(
    path: Path, names: Sequence[str], identity: str | None, step: int | None
) -> pa.Table:
    info = read_info(path)
    if identity is not None and info.identity != identity:
        raise ForeignBatchError(
            f"{path} belongs to a run of identity {info.identity}, this run has {identity}"
        )
    if step is not None and info.step != step:
        raise ForeignBatchError(f"{path} holds step {info.step}, not {step}")
    try:
        table = pq.read_table(path, columns=list(names), page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise CorruptBatchError(f"{path} is damaged: {error}") from error
    missing = [name for name in names if name not in table.column_names]
    if missing:
        raise CorruptBatchError(f"{path} lacks the columns {', '.join(missing)}")
    return table


def _rows(column: pa.ChunkedArray) -> list[np.ndarray]:
    """One numpy array a row of a list column, without a Python object a number."""
    array = column.combine_chunks()
    lengths = pc.list_value_length(array).to_numpy()
    flat = array.flatten().to_numpy(zero_copy_only=False)
    return np.split(flat, np.cumsum(lengths)[:-1]) if len(lengths) else []


def check_sample(sample: Sample, step: int) -> None:
    """Raises ValueError when the parts of a sample disagree."""
    where = f"sample {sample.sample_id}"
    if sample.step != step:
        raise ValueError(f"{where} is of step {sample.step}, not {step}")
    length = len(sample.tokens)
    for name in TOKEN_COLUMNS:
        if len(getattr(sample, name)) != length:
            raise ValueError(f"{where}: {len(getattr(sample, name))} {name} for {length} tokens")
    mask = np.zeros(length, dtype=bool)
    for turn in sample.turns:
        if not 0 <= turn.start < turn.end <= length:
            raise ValueError(f"{where}: turn {turn.start}:{turn.end} of {length} tokens")
        mask[turn.start : turn.end] = True
    if not np.array_equal(mask, sample.loss_mask):
        raise ValueError(f"{where}: the loss mask is not the union of its turns")
    if not np.all((np.asarray(sample.weight_versions) >= 0) == mask):
        raise ValueError(f"{where}: a generated token has no weight version")
    if not np.all(np.isfinite(sample.rollout_logprobs)):
        raise ValueError(f"{where}: a log-prob is not finite")
    if not np.isfinite([sample.reward, sample.penalty, sample.advantage]).all():
        raise ValueError(f"{where}: reward, penalty or advantage is not finite")
