"""What `glm52 influence` does with its arguments."""

import warnings
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
    try:  # not after all the work
        (run.path / KIND).mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{short(run.path / KIND)} cannot be written to: {error.strerror}; copy the run to "
            "where it can."
        ) from error
    from ..cpu import install_alone

    install_alone()
    # torch speaks of what Megatron calls.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    from .again import influence_rows

    path = batch_path(run_dir, KIND, step)
    identity = load_identity(run_dir)[0].hash
    with Console(stderr=True).status("reading") as status:
        rows = influence_rows(run, identity, step, status.update)
    table = pa.Table.from_pylist(rows, SCHEMA).replace_schema_metadata(
        {"schema_version": SCHEMA_VERSION, "identity": identity, "step": str(step)}
    )
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)
    told = influences(run, step)
    assert told is not None
    print_influence(suited(None), step, told)


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
    trained = set(run.steps("train")) & set(run.steps("rollouts"))
    if not {step, step + 1} <= trained:
        told = sorted(one for one in trained if one + 1 in trained)
        which = f"step {', '.join(map(str, told))}" if told else "no step of it yet"
        if len(told) > 2 and told[-1] - told[0] + 1 == len(told):
            which = f"steps {told[0]} to {told[-1]}"
        raise UserError(
            f"{name} lacks step {step} or the one after, whose content it moved, in rollouts/ or "
            f"train/; influence can be told of {which}."
        )
