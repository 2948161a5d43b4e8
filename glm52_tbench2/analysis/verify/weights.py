"""The first weight in which two runs differ, by what their engines were given.

A checkpoint's own index is a pickle, which is not opened here: it could do anything.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...config.paths import of_run
from ..run_files import RunFiles
from .step_files import Array

_TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8"}


@dataclass(frozen=True)
class _Tensor:
    """Where a tensor lies in a safetensors file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int

    def read(self) -> Array:
        """Its bytes."""
        return np.fromfile(self.path, np.uint8, self.size, offset=self.offset)

    def value(self, index: int) -> str:
        """The element at a flat index, in its own precision."""
        found = self.read().view(_TYPES[self.dtype])[index]
        if self.dtype == "BF16":  # the upper half of a float32
            found = np.array(int(found) << 16, dtype=np.uint32).view(np.float32)
        return f"{float(found):.9g}"


def first_weight(one: RunFiles, other: RunFiles, step: int) -> str | None:
    """The first weight after `step` steps that differs and both its values, a tensor in memory.

    "optimizer state alone" when no weight does; None when a run keeps none of that step any more.
    """
    mine, theirs = (dict(_tensors(_folder(run) / f"version_{step:06d}")) for run in (one, other))
    if not mine or mine.keys() != theirs.keys():
        return None
    for name, tensor in mine.items():
        unequal = np.flatnonzero(tensor.read() != theirs[name].read())
        if len(unequal):
            width = tensor.size // max(int(np.prod(tensor.shape)), 1)
            flat = int(unequal[0]) // width
            index = [int(i) for i in np.unravel_index(flat, tensor.shape)]
            if tensor.dtype not in _TYPES:
                return f"{name}{index}"
            return f"{name}{index}: {tensor.value(flat)} | {theirs[name].value(flat)}"
    return "optimizer state alone"


def _folder(run: RunFiles) -> Path:
    return of_run(run.config.engine.weights_dir, run.path)


def _tensors(folder: Path) -> Iterator[tuple[str, _Tensor]]:
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        for name, about in header.items():
            if name != "__metadata__":
                begin, end = about["data_offsets"]
                yield (
                    name,
                    _Tensor(
                        path, about["dtype"], tuple(about["shape"]), 8 + length + begin, end - begin
                    ),
                )
