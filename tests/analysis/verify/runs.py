"""Small whole runs, and ways to change them in one place."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from glm52_tbench2.analysis.verify import verify_one, verify_two
from glm52_tbench2.config.compose import load_run_config
from glm52_tbench2.config.identity import identify, save_identity
from glm52_tbench2.rollout.batch import SCHEMA_VERSION
from glm52_tbench2.tasks.sets import load_set

from .. import fake_run
from ..fake_run import FakeRun

STEPS = 3
Change = Callable[[Path], None]


def make(path: Path, tokenizer: Tokenizer) -> Path:
    """A finished run of three small steps with every kind of file."""
    run = FakeRun(path, tokenizer, steps=STEPS, num_tasks=4, num_eval=3, groups=2, samples=3)
    run.start()
    config = load_run_config(path)
    identity = identify(config, [load_set(name) for name in (config.data.train, config.data.eval)])
    save_identity(identity, path, [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fake_run, "IDENTITY", identity.hash)
        run.evaluate(0)
        for step in range(1, STEPS + 1):
            run.step(step)
            score(path, step, identity.hash)
        run.evaluate(STEPS)
    checkpoint(path / "checkpoints" / f"step_{STEPS:06d}", STEPS)
    (path / "finished").write_text("now\n")
    return path


def score(path: Path, step: int, identity: str) -> None:
    """train/step_N.parquet, as the trainer writes it."""
    batch = pq.read_table(path / "rollouts" / f"step_{step:06d}.parquet").to_pylist()
    logprobs = [np.where(row["loss_mask"], row["rollout_logprobs"], 0.0) * 1.01 for row in batch]
    table = pa.table(
        {
            "sample_id": pa.array([row["sample_id"] for row in batch], pa.string()),
            "trainer_logprobs": pa.array(logprobs, pa.list_(pa.float32())),
            "entropy": pa.array([-one for one in logprobs], pa.list_(pa.float32())),
        }
    ).replace_schema_metadata(
        {"schema_version": SCHEMA_VERSION, "identity": identity, "step": str(step)}
    )
    (path / "train").mkdir(exist_ok=True)
    pq.write_table(
        table, path / "train" / f"step_{step:06d}.parquet", compression="zstd",
        write_page_checksum=True,
    )  # fmt: skip


def checkpoint(folder: Path, step: int) -> None:
    folder.mkdir(parents=True)
    for name, content in ((".metadata", b"index"), ("__0_0.distcp", b"weights"), ("c.pt", b"c")):
        (folder / name).write_bytes(content)
    files = {
        path.name: {
            "size": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in folder.iterdir()
    }
    stable = {"step": step, "weight_version": step, "files": files}
    (folder / "STABLE").write_text(json.dumps(stable))


def told(*run_dirs: Path, everything: bool = False) -> tuple[int, str]:
    """Exit code and text of verify."""
    lines: list[str] = []
    if len(run_dirs) == 1:
        return verify_one(run_dirs[0], lines.append), "\n".join(lines)
    return verify_two(*run_dirs, everything, lines.append), "\n".join(lines)


def file_of(run_dir: Path, kind: str, step: int) -> Path:
    return run_dir / kind / f"step_{step:06d}.parquet"


def rewrite(run_dir: Path, kind: str, step: int, change: Callable[[list[dict]], None]) -> None:
    """Writes a step file again with changed rows, its checksums right."""
    path = file_of(run_dir, kind, step)
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows)
    pq.write_table(
        pa.Table.from_pylist(rows, schema=table.schema), path, compression="zstd",
        write_page_checksum=True,
    )  # fmt: skip


def stamp(run_dir: Path, kind: str, step: int, key: str, value: str) -> None:
    """Writes a step file again that says other things about itself."""
    path = file_of(run_dir, kind, step)
    table = pq.read_table(path)
    metadata = {**table.schema.metadata, key.encode(): value.encode()}
    pq.write_table(table.replace_schema_metadata(metadata), path, write_page_checksum=True)


def set_in(kind: str, step: int, row: int, column: str, value: object) -> Change:
    def change(run_dir: Path) -> None:
        rewrite(run_dir, kind, step, lambda rows: rows[row].__setitem__(column, value))

    return change


def first_generated(row: dict) -> int:
    return int(np.argmax(row["loss_mask"]))


def changed(kind: str, step: int, change: Callable[[list[dict]], None]) -> Change:
    return lambda run_dir: rewrite(run_dir, kind, step, change)


def stamped(kind: str, step: int, key: str, value: str) -> Change:
    return lambda run_dir: stamp(run_dir, kind, step, key, value)
