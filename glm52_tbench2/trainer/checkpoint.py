"""Checkpoints of the trainer: which one a run goes on from, and loading it.

Megatron's distributed format, so a checkpoint can be loaded into another number of ranks, another
layout, and with the optimizer state in memory or on disk. Nothing random is kept: every step seeds
its generators from the run's seed and its own number.
"""

import json
import logging
import re
from pathlib import Path
from typing import Any

import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.dist_checkpointing.state_dict_utils import load_preprocess
from megatron.core.optimizer import ChainedOptimizer

from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.paths import resolve
from glm52_tbench2.config.schema import RunConfig

from . import checkpoint_files as files
from .convert import load_hf
from .model import PolicyModel
from .optimizer import load_state, state_shards
from .weights.safetensors import Folder

Shapes = dict[str, tuple[int, ...]]

log = logging.getLogger(__name__)


def start(
    run_dir: Path,
    run: RunConfig,
    model: PolicyModel,
    optimizer: ChainedOptimizer,
    until: int | None = None,
) -> int:
    """Fills the model from the newest checkpoint, of step `until` at most, else with the run's
    starting weights; the steps it has trained. A collective.

    Raises UserError.
    """
    found = load_latest(run_dir, model, optimizer, until)
    if found is None:
        source = resolve(run.model.path)
        if run.model.checkpoint is None:
            load_hf(model, source)
        else:
            load_weights(resolve(run.model.checkpoint), model, source)
        optimizer.reload_model_params()
    return found or 0


def load_latest(
    run_dir: Path, model: PolicyModel, optimizer: ChainedOptimizer, until: int | None = None
) -> int | None:
    """Loads the newest checkpoint that is complete and intact, of step `until` at most where that
    is given; its step, or None if there is none.

    A collective. Damaged and unfinished ones are passed over with a warning, and stay where they
    are until a newer one is written.

    Raises UserError when it is one of another model.
    """
    step = newest_intact(run_dir, until)
    if step is None:
        return None
    folder = files.checkpoint_path(run_dir, step)
    weights = model.sharded_state_dict()
    shards = state_shards(optimizer, weights, is_loading=True)
    wanted = {"model": weights, "optimizer": shards}
    if difference := _difference(folder, wanted):
        raise UserError(
            f"{folder} is a checkpoint of another model: {difference}; "
            "resume with the model it was written with, or start a new run."
        )
    state = dist_checkpointing.load(wanted, str(folder))
    model.load_state_dict(state["model"])
    load_state(optimizer, state["optimizer"], state["updates"])
    return step


def load_weights(folder: Path, model: PolicyModel, source: Path) -> None:
    """Fills the model from the checkpoint that was imported from `source`. A collective.

    Raises UserError when it is not whole, or of other weights.
    """
    problem = _problem(folder)
    if problem is None and _imported_from(folder) != Folder(source).fingerprint():
        problem = f"it was not made of what is in {source} now"
    if problem:
        raise UserError(
            f"model.checkpoint {folder} cannot be loaded: {problem}; make it with glm52 weights "
            "import, or write model.checkpoint=null."
        )
    state = dist_checkpointing.load({"model": model.sharded_state_dict()}, str(folder))
    model.load_state_dict(state["model"])


def newest_intact(run_dir: Path, until: int | None = None) -> int | None:
    """The step of the newest checkpoint whose files are all as they were written, of step `until`
    at most. A collective."""
    for step in reversed(_from_rank_0(files.steps_begun(run_dir))):
        if until is not None and step > until:
            continue
        folder = files.checkpoint_path(run_dir, step)
        problem = _problem(folder)
        if problem is None:
            return step
        if dist.get_rank() == 0:
            log.warning("Checkpoint %s is passed over: %s", folder, problem)
    return None


def _problem(folder: Path) -> str | None:
    """What is wrong with a checkpoint, the same on every rank; None: nothing."""
    expected = _from_rank_0(files.stable_files(folder))
    if isinstance(expected, str):
        return expected
    mine = sorted(expected)[dist.get_rank() :: dist.get_world_size()]
    parts: list[files.Described] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(parts, files.describe(folder, mine))
    return files.damage(expected, {name: about for part in parts for name, about in part.items()})


def _imported_from(folder: Path) -> Any:
    """The fingerprint of the weights that a whole checkpoint was imported from."""
    return json.loads((folder / files.STABLE).read_text()).get("source")


def _difference(folder: Path, wanted: dict[str, Any]) -> str | None:
    """How the tensors of a checkpoint differ from `wanted`, the same on every rank."""
    shards = nested_values(load_preprocess(wanted)[0])
    parts: list[Shapes] = [{} for _ in range(dist.get_world_size())]
    mine = {s.key: tuple(s.global_shape) for s in shards if isinstance(s, ShardedTensor)}
    dist.all_gather_object(parts, mine)
    here = {key: shape for part in parts for key, shape in part.items()}
    metadata = dist_checkpointing.load_tensors_metadata(str(folder)) if not dist.get_rank() else {}
    there = _from_rank_0({key: tuple(t.global_shape) for key, t in metadata.items()})
    if (layers := _layers(here)) != (theirs := _layers(there)):
        return f"it has {theirs} layers, and the config makes {layers}"
    for key in sorted(here.keys() | there.keys(), key=lambda key: (key.startswith("optim"), key)):
        if key not in there:
            return f"it has no {key}"
        if key not in here:
            return f"it has {key}, which the config does not make"
        if here[key] != there[key]:
            return (
                f"its {key} has shape {list(there[key])}, and the config makes it {list(here[key])}"
            )
    return None


def _layers(shapes: Shapes) -> int:
    numbers = (re.match(r"decoder\.layers\.(\d+)\.", key) for key in shapes)
    return 1 + max((int(found[1]) for found in numbers if found), default=-1)


def _from_rank_0(value: Any) -> Any:
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]
