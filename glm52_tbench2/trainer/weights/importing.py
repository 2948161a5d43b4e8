"""`glm52 weights import`: a folder in transformers' format becomes a checkpoint of the trainer.

It is one in Megatron's distributed format, with STABLE, as the trainer itself writes; any layout
of ranks loads it.
"""

import json
import pickle
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config
from torch import Tensor
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.files import atomic_write_bytes
from glm52_tbench2.config.schema import RunConfig

from ..checkpoint_files import describe as describe_files
from ..checkpoint_files import mark_stable
from ..convert import FLOATS
from ..hf import check_hf_config
from .layout import Layout, Part, describe
from .safetensors import Folder
from .work import Hashed, Work, refuse_existing

FILE_BYTES = 4 * 2**30
"""Largest file, bytes, beside a single larger tensor."""
_OBJECTS = "__objects_0.distcp"

# A chunk of a tensor, or (with no place in it) an object: key, place, size, and where its bytes
# are in the file.
_Item = tuple[str, list[int] | None, list[int] | None, int, int]


def import_hf(run: RunConfig, folder: Path, target: Path, file_bytes: int = FILE_BYTES) -> None:
    """Makes the checkpoint `target` of the weights in `folder`, which are those of run.model.

    Holds one tensor at a time, in the precision that it has there. Goes on where it was stopped:
    finished files are verified by their hash and kept. Each tensor is cut for the ranks of
    run.parallel, which so read only their own; others read what they need of it.

    Raises UserError before anything is written when the folder is damaged, incomplete or another
    model's, and when the disk is too small.
    """
    refuse_existing(target)
    check_hf_config(run.model, folder)
    source = Folder(folder)
    layout = describe(run)
    _check(layout, source)
    plan = {
        "source": source.fingerprint(),
        "model": asdict(run.model) | {"path": None},
        "shares": [run.parallel.tensor, run.parallel.expert_tensor],
        "file_bytes": file_bytes,
    }
    total = sum(source.entries[part.name].nbytes for part in layout.parts)
    if others := len(source.entries) - len(layout.parts):
        print(
            f"{others} tensors are of no layer that is trained; they stay in {folder}", flush=True
        )
    work = Work(target, json.loads(json.dumps(plan, default=str)), total, "import")
    items: dict[str, list[_Item]] = {}
    for number, parts in enumerate(_files(layout.parts, source, file_bytes)):
        name = f"__{number}_0.distcp"
        told: list[_Item] | None = work.done(name)
        if told is None:
            told = []
            with work.file(name, told) as file:
                for part in parts:
                    _write(part, source.read(part.name), file, told)
        items[name] = told
    told = []
    with work.file(_OBJECTS, told) as file:
        for key, value in layout.objects.items():
            told.append((key, None, None, *_saved([value], file)))
    items[_OBJECTS] = told
    dtypes = {part.key: source.entries[part.name].dtype for part in layout.parts}
    _write_metadata(work, layout, dtypes, items)
    work.finish()


def _check(layout: Layout, source: Folder) -> None:
    """Raises UserError where the folder has not what the model config asks for."""
    dtypes: dict[str, torch.dtype] = {}
    for part in layout.parts:
        entry = source.entries.get(part.name)
        if entry is None:
            raise UserError(
                f"{source.path} lacks the tensor {part.name}, which the model config asks for."
            )
        if entry.shape != part.shape:
            raise UserError(
                f"{source.path}: {part.name} has shape {list(entry.shape)}, "
                f"the model config makes it {list(part.shape)}."
            )
        if entry.dtype not in FLOATS.values():
            raise UserError(
                f"{source.path}: {part.name} is {str(entry.dtype).removeprefix('torch.')}; name a "
                "folder of the weights in bfloat16 or float32."
            )
        if dtypes.setdefault(part.key, entry.dtype) is not entry.dtype:
            raise UserError(
                f"{source.path}: {part.name} is in another precision than what it is stacked with; "
                "name a folder of weights in one precision."
            )


def _files(parts: list[Part], source: Folder, file_bytes: int) -> Iterator[list[Part]]:
    """The parts in lists of at most `file_bytes`, in order."""
    found: list[Part] = []
    size = 0
    for part in parts:
        more = source.entries[part.name].nbytes
        if found and size + more > file_bytes:
            yield found
            found, size = [], 0
        found.append(part)
        size += more
    yield found


def _write(part: Part, tensor: Tensor, file: Hashed, told: list[_Item]) -> None:
    """Writes a tensor in as many chunks as ranks share it."""
    lead = len(part.whole) - len(part.shape)
    offset = list(part.offset)
    for chunk in tensor.chunk(part.shares, part.split or 0):
        # torch.save would write all that a view shares its memory with.
        own = chunk if part.shares == 1 else chunk.clone(memory_format=torch.contiguous_format)
        size = [1] * lead + list(own.shape)
        told.append((part.key, list(offset), size, *_saved(own.view(size), file)))
        offset[lead + (part.split or 0)] += own.shape[part.split or 0]


def _saved(value: Any, file: Hashed) -> tuple[int, int]:
    """Writes a value; where its bytes begin and how many there are."""
    start = file.size
    torch.save(value, file)  # type: ignore[arg-type]
    return start, file.size - start


def _write_metadata(
    work: Work,
    layout: Layout,
    dtypes: dict[str, torch.dtype],
    items: dict[str, list[_Item]],
) -> None:
    """Writes what Megatron reads first, and STABLE."""
    wholes = {part.key: part.whole for part in layout.parts}
    described: dict[str, Any] = {
        key: TensorStorageMetadata(TensorProperties(dtype=dtypes[key]), torch.Size(wholes[key]), [])
        for key in wholes
    }
    described |= {key: BytesStorageMetadata() for key in layout.objects}
    storage = {}
    for name, told in items.items():
        for key, offset, size, start, length in told:
            place = None
            if offset is not None and size is not None:
                place = torch.Size(offset)
                described[key].chunks.append(ChunkStorageMetadata(place, torch.Size(size)))
            storage[MetadataIndex(key, place)] = _StorageInfo(name, start, length)
    metadata = Metadata(state_dict_metadata=described, storage_data=storage)
    atomic_write_bytes(work.folder / ".metadata", pickle.dumps(metadata))
    torch.save({"step": 0}, work.folder / "common.pt")
    save_config(CheckpointingConfig("torch_dist"), str(work.folder))
    files = work.hashes() | describe_files(work.folder, [".metadata", "common.pt", "metadata.json"])
    source = json.loads((work.folder / "plan.json").read_bytes())["source"]
    mark_stable(work.folder, 0, files, source=source)
