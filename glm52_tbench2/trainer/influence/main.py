"""What `glm52 influence` does with its arguments."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from glm52_tbench2.analysis.influence import KIND, SCHEMA, influences, print_influence
from glm52_tbench2.analysis.run_files import RunFiles
from glm52_tbench2.analysis.terminal import suited
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.files import SCHEMA_VERSION, atomic_path
from glm52_tbench2.config.identity import load_identity
from glm52_tbench2.config.paths import short
from glm52_tbench2.config.schema import DType
from glm52_tbench2.rollout.batch import batch_path


def influence(run_dir: Path, step: int) -> None:
    """Takes the update of `step` apart, writes RUN/influence/step_N.parquet and prints it.

    Raises UserError where the step or the next one is not there, the update cannot be taken apart,
    or what is computed is not what the run did.
    """
    run = RunFiles.open(run_dir)
    _refuse(run, step)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from ..cpu import install

    install()
    from .again import influence_rows

    identity = load_identity(run_dir)[0].hash
    with Console(stderr=True).status("reading") as status:
        rows = influence_rows(run, identity, step, status.update)
    path = batch_path(run_dir, KIND, step)
    path.parent.mkdir(exist_ok=True)
    table = pa.Table.from_pylist(rows, SCHEMA).replace_schema_metadata(
        {"schema_version": SCHEMA_VERSION, "identity": identity, "step": str(step)}
    )
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)
    print_influence(suited(None), step, influences(run, step))


def _refuse(run: RunFiles, step: int) -> None:
    """Raises UserError where it is known before any work that the update cannot be taken apart."""
    name, config = short(run.path), run.config
    if config.model.dtype is not DType.float32:
        raise UserError(
            f"{name} trains in {config.model.dtype.name}, which rounds the parts of an update "
            "away; influence can be told of runs with model.dtype=float32."
        )
    if config.optim.steps_per_batch > 1:
        raise UserError(
            f"{name} has optim.steps_per_batch={config.optim.steps_per_batch}; influence can be "
            "told of runs with one update a step."
        )
    trained = run.steps("train")
    if not {step, step + 1} <= set(trained):
        last = f"1 to {trained[-1] - 1}" if len(trained) > 1 else "none yet"
        raise UserError(
            f"{name} has not trained step {step} and the one after, whose content it moved; "
            f"influence can be told of steps {last}."
        )
