"""`glm52 weights export`: a checkpoint of the trainer becomes a folder in transformers' format."""

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.utils import _create_file_view

from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.files import atomic_write_bytes
from glm52_tbench2.config.schema import RunConfig
from glm52_tbench2.engines.weights import fp8
from glm52_tbench2.engines.weights.folders import copy_beside

from ..checkpoint_files import STABLE
from ..hf import check_hf_config
from .layout import Part, describe
from .safetensors import INDEX, Folder, content, header, order
from .work import Progress, Work, refuse_existing

SUMS = "SHA256SUMS"
"""Lists the sha256 of every file of weights, for `sha256sum --check`."""

_Tensors = dict[str, tuple[torch.dtype, tuple[int, ...]]]


class Checkpoint:
    """A checkpoint that is whole, whose tensors are read one at a time."""

    def __init__(self, path: Path) -> None:
        """Raises UserError when it is no checkpoint or was not finished."""
        self.path = path
        if path.with_name(f"{path.name}.partial").exists() and not path.exists():
            raise UserError(
                f"{path} was not finished; run the same glm52 weights import again, which goes on "
                "where it was stopped."
            )
        try:
            self.stable: dict[str, Any] = json.loads((path / STABLE).read_bytes())
        except (OSError, ValueError):
            raise UserError(
                f"{path} has no {STABLE} file that can be read, so it is no whole checkpoint; name "
                "one that glm52 weights import made, or RUN/checkpoints/step_N."
            ) from None
        self._check_files()
        self._metadata = FileSystemReader(path).read_metadata()

    def dtype(self, part: Part) -> torch.dtype:
        """In which a part is stored. Raises UserError when it is not there in this shape."""
        about = self._metadata.state_dict_metadata.get(part.key)
        if not isinstance(about, TensorStorageMetadata) or tuple(about.size) != part.whole:
            raise UserError(
                f"{self.path} has {part.key} in shape {list(getattr(about, 'size', []))}, the "
                f"model config makes it {list(part.whole)}; give the overrides of its run."
            )
        return about.properties.dtype

    def read(self, part: Part) -> Tensor:
        """A tensor, from the chunks that hold something of it."""
        about: Any = self._metadata.state_dict_metadata[part.key]
        storage: Any = self._metadata.storage_data
        found = None
        for chunk in about.chunks:
            low = [max(a, b) for a, b in zip(chunk.offsets, part.offset, strict=True)]
            ends = zip(chunk.offsets, chunk.sizes, part.offset, part.size, strict=True)
            high = [min(a + n, b + m) for a, n, b, m in ends]
            if any(a >= b for a, b in zip(low, high, strict=True)):
                continue
            info = storage[MetadataIndex(part.key, chunk.offsets)]
            with (self.path / info.relative_path).open("rb") as file:
                view: Any = _create_file_view(file, info.offset, info.length)
                tensor = torch.load(view, map_location="cpu", weights_only=True)
            tensor = tensor.detach().view(tuple(chunk.sizes))
            if tuple(chunk.offsets) == part.offset and tuple(chunk.sizes) == part.size:
                return tensor.view(part.shape)
            if found is None:
                found = torch.empty(part.size, dtype=about.properties.dtype)
            found[_window(low, high, part.offset)] = tensor[_window(low, high, chunk.offsets)]
        assert found is not None, part
        return found.view(part.shape)

    def _check_files(self) -> None:
        """Raises UserError unless every file is as STABLE tells."""
        files = self.stable["files"]
        progress = Progress("check", sum(about["size"] for about in files.values()))
        for name, about in files.items():
            path = self.path / name
            if not path.is_file():
                raise UserError(f"{path} is missing; take another checkpoint or make it again.")
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != about["sha256"]:
                raise UserError(
                    f"{path} is not what was written; take another checkpoint or make it again."
                )
            progress.add(about["size"])


def export_hf(run: RunConfig, checkpoint: Path, target: Path, dtype: str = "") -> None:
    """Makes the folder `target` of the weights in a checkpoint of run.model.

    The files, the config, the tokenizer and what the trainer leaves as it is are those of
    run.model.path. With `dtype` fp8 linear layers are written in blocks of that. Holds one tensor
    at a time, and goes on where it was stopped.

    Raises UserError before anything is written when the checkpoint is damaged or another model's,
    or the disk is too small.
    """
    refuse_existing(target)
    start = Path(run.model.path)
    check_hf_config(run.model, start)
    like = Folder(start)
    stored = Checkpoint(checkpoint)
    parts = {part.name: part for part in describe(run).parts}
    dtypes = {name: entry.dtype for name, entry in like.entries.items()}
    dtypes |= {name: stored.dtype(part) for name, part in parts.items()}
    files = {path.name: _tensors(like, path, dtypes, dtype) for path in like.metadata}
    plan = {"checkpoint": stored.stable["files"], "dtype": dtype, "files": sorted(files)}
    total = sum(map(_nbytes, files.values()))
    work = Work(target, plan, total, "export")
    for path in like.metadata:
        if work.done(path.name) is not None:
            continue
        with work.file(path.name, {}) as file:
            file.write(header(files[path.name], like.metadata[path]))
            for name, tensor in _filled(files[path.name], parts, stored, like):
                assert (tensor.dtype, tuple(tensor.shape)) == files[path.name][name], name
                file.write(content(tensor))
                del tensor  # before the next is read
    copy_beside(start, work.folder, dtype)
    weight_map = {name: file for file, tensors in files.items() for name in tensors}
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    if (start / INDEX).is_file():
        atomic_write_bytes(work.folder / INDEX, json.dumps(index, indent=2).encode())
    sums = "".join(f"{about['sha256']}  {name}\n" for name, about in work.hashes().items())
    atomic_write_bytes(work.folder / SUMS, sums.encode())
    work.finish()


def _tensors(like: Folder, path: Path, dtypes: dict[str, torch.dtype], dtype: str) -> _Tensors:
    """What a file of the new folder holds, in order, by the file of the same name."""
    here = {name: entry for name, entry in like.entries.items() if entry.path == path}
    if dtype != "fp8":
        return {name: (dtypes[name], entry.shape) for name, entry in here.items()}
    kept = {n: (dtypes[n], e.shape) for n, e in here.items() if not fp8.is_quantised(n)}
    kept = dict(sorted(kept.items(), key=lambda one: order(one[1][0])))
    weights: _Tensors = {}
    scales: _Tensors = {}
    for name, entry in here.items():
        if fp8.is_quantised(name):
            weights[name] = (torch.float8_e4m3fn, entry.shape)
            scales[fp8.scales_of(name)] = (torch.float32, fp8.scales_shape(entry.shape))
    # Known after the weights, which thus are read once; but a number must not lie across words.
    aligned = _nbytes(kept | weights) % torch.float32.itemsize == 0
    return kept | weights | scales if aligned else scales | kept | weights


def _filled(
    tensors: _Tensors, parts: dict[str, Part], stored: Checkpoint, like: Folder
) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a file, in order."""

    def read(name: str) -> Tensor:
        return stored.read(parts[name]) if name in parts else like.read(name)

    scales: dict[str, Tensor] = {}
    for name, (dtype, _) in tensors.items():
        weight = name.removesuffix(fp8.SCALES)
        if name in scales:
            yield name, scales.pop(name)
        elif weight != name:
            yield name, fp8.quantise(read(weight))[1]
        elif dtype is torch.float8_e4m3fn:
            quantised, scales[fp8.scales_of(name)] = fp8.quantise(read(name))
            yield name, quantised
            del quantised
        else:
            yield name, read(name)


def _nbytes(tensors: _Tensors) -> int:
    return sum(dtype.itemsize * math.prod(shape) for dtype, shape in tensors.values())


def _window(low: list[int], high: list[int], origin: Any) -> tuple[slice, ...]:
    return tuple(slice(a - o, b - o) for a, b, o in zip(low, high, origin, strict=True))
