"""Writes checkpoints while training goes on.

A save copies what is in memory, which holds up training; a thread of each rank writes it. A thread
rather than Megatron's processes: it shares the copy, and it is gone with a rank that is killed.
The threads meet in a group of their own, beside the collectives of the training that goes on.
"""

import logging
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import Any

import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.dict_utils import dict_list_map_inplace
from megatron.core.dist_checkpointing.mapping import (
    ShardedStateDict,
    ShardedTensor,
    ShardedTensorFactory,
    is_main_replica,
)
from megatron.core.dist_checkpointing.strategies.base import SaveShardedStrategy
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreSavePlanner,
    _replace_state_dict_keys_with_sharded_keys,
    mcore_to_pyt_state_dict,
)
from megatron.core.optimizer import ChainedOptimizer
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint import save as write_shards
from torch.distributed.checkpoint.utils import _DistWrapper

from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.schema import CheckpointConfig

from . import checkpoint_files as files
from .disk_adam.optimizer import DiskAdam
from .model import PolicyModel
from .optimizer import state_shards, updates_done

# Ranks wait here for the slowest disk, and for the reading back of what it was given.
_TIMEOUT = timedelta(hours=12)

log = logging.getLogger(__name__)


class Saver:
    """Writes one checkpoint at a time. Every rank makes the same calls in the same order."""

    def __init__(
        self,
        run_dir: Path,
        knobs: CheckpointConfig,
        model: PolicyModel,
        optimizer: ChainedOptimizer,
    ) -> None:
        """A collective."""
        self._run_dir, self._knobs = run_dir, knobs
        self._model, self._optimizer = model, optimizer
        self._ranks = _DistWrapper(dist.new_group(backend="gloo", timeout=_TIMEOUT), True, 0)
        self._thread: Thread | None = None
        self._step = 0
        self._error: BaseException | None = None
        for part in optimizer.chained_optimizers:
            if isinstance(part, DiskAdam):
                part.before_overwriting = self.wait

    def save(self, step: int) -> None:
        """Copies the state after `step` steps and starts to write it.

        A collective. The save before has ended when this one starts.

        Raises UserError when the disk is full; what was written of that checkpoint is then deleted.
        """
        started = perf_counter()
        self.wait()
        self._step, folder = step, files.checkpoint_path(self._run_dir, step)
        copy = _Copy()
        try:
            if dist.get_rank() == 0:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
            dist.barrier()
            dist_checkpointing.save(self._state(), str(folder), copy)
        except Exception as error:
            raise self._told(error) from error
        held_up = perf_counter() - started
        self._thread = Thread(target=self._write, args=(folder, copy, held_up))
        self._thread.start()

    @property
    def failed(self) -> bool:
        """Whether `wait` would raise now, on this rank."""
        return self._error is not None

    def wait(self) -> None:
        """Returns once no save is in flight. Raises what `save` does, and RuntimeError."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            raise self._told(self._error) from self._error

    def _state(self) -> dict[str, Any]:
        """Everything that is saved. What the next update changes is copied."""
        weights = self._model.sharded_state_dict()
        shards = state_shards(self._optimizer, weights, is_loading=False)
        for number, part in enumerate(self._optimizer.chained_optimizers):
            if not isinstance(part, DiskAdam):
                dict_list_map_inplace(_copied, shards[number])
        return {
            "step": self._step,
            "updates": updates_done(self._optimizer),
            "model": dict_list_map_inplace(_copied, weights),
            "optimizer": shards,
        }

    def _write(self, folder: Path, copy: "_Copy", held_up: float) -> None:
        started = perf_counter()
        try:
            write_shards(
                copy.taken(),
                storage_writer=FileSystemWriter(folder, per_thread_copy_ahead=0),
                planner=MCoreSavePlanner(
                    flatten_state_dict=False, can_run_decentralized_global_plan=False
                ),
                process_group=self._ranks.group,
            )
            self._ranks.all_reduce("complete", lambda: self._describe(folder), self._complete)
            if dist.get_rank() == 0:
                log.info(
                    "checkpoint of step %d: held up training for %.2f s, written in %.2f s",
                    self._step,
                    held_up,
                    perf_counter() - started,
                )
        except BaseException as error:
            self._error = error

    def _describe(self, folder: Path) -> files.Described:
        """A part of the files; the ranks share the reading."""
        names = files.contents(folder)
        return files.describe(folder, names[self._ranks.rank :: self._ranks.get_world_size()])

    def _complete(self, parts: list[files.Described]) -> None:
        everything = {name: about for part in parts for name, about in part.items()}
        folder = files.checkpoint_path(self._run_dir, self._step)
        # A rank on another node may not have seen every file in its listing yet.
        missing = [name for name in files.contents(folder) if name not in everything]
        everything |= files.describe(folder, missing)
        files.mark_stable(folder, self._step, everything)
        files.prune(self._run_dir, self._step, self._knobs.keep_last, self._knobs.keep_every)

    def _told(self, error: BaseException) -> BaseException:
        if not files.disk_full(error):
            return RuntimeError(
                f"The checkpoint of step {self._step} could not be written: {error}"
            )
        kept = files.steps_complete(self._run_dir)
        if dist.get_rank() == 0 and self._step not in kept:
            shutil.rmtree(files.checkpoint_path(self._run_dir, self._step), ignore_errors=True)
        return UserError(
            f"The disk of {self._run_dir} is full, so the checkpoint of step {self._step} was not "
            f"written; {f'that of step {kept[-1]} is whole' if kept else 'there is none yet'}. "
            "Free some space, then resume the run."
        )


class _Copy(SaveShardedStrategy):
    """Stands where Megatron would write, and keeps what it is given for a thread to write."""

    def __init__(self) -> None:
        super().__init__("torch_dist", 1)
        self._shards: dict[str, Any] = {}

    def save(self, sharded_state_dict: ShardedStateDict, checkpoint_dir: Any) -> None:
        shards, _, _ = _replace_state_dict_keys_with_sharded_keys(
            sharded_state_dict, keep_only_main_replica=True
        )
        self._shards = mcore_to_pyt_state_dict(shards)

    @property
    def can_handle_sharded_objects(self) -> bool:
        return True

    def taken(self) -> dict[str, Any]:
        """What is to be written, which is then nobody else's."""
        taken, self._shards = self._shards, {}
        return taken


def _copied(item: Any) -> Any:
    """A shard with a copy of its data in the host's memory, if this rank is the one to write it."""
    if isinstance(item, ShardedTensor | ShardedTensorFactory) and is_main_replica(item.replica_id):
        return replace(item, data=item.data.detach().to("cpu", copy=True))
    return item
