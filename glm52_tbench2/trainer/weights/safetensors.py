"""safetensors files, read and written a tensor at a time.

The format is the length of a header, the header in JSON, and the tensors' bytes one after another.
They are read, not mapped: a page that is mapped counts as this process's memory.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glm52_tbench2.config.errors import UserError

INDEX = "model.safetensors.index.json"

# Most aligned first, as in the files that the library itself writes.
_DTYPES = {
    "F64": torch.float64,
    "I64": torch.int64,
    "F32": torch.float32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F8_E4M3": torch.float8_e4m3fn,
    "U8": torch.uint8,
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}

_SAMPLES = 8
_SAMPLE_BYTES = 2**16
"""Read of each file to tell it from others: few, since every start does so."""


@dataclass(frozen=True)
class Entry:
    """A tensor in a file."""

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    """Where its bytes begin in the file."""

    @property
    def nbytes(self) -> int:
        """Its size, bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


class Folder:
    """The tensors in a folder's safetensors files."""

    def __init__(self, path: Path) -> None:
        """Reads the headers. Raises UserError for a file that is missing, cut short or no such."""
        self.path = path
        files = sorted(path.glob("*.safetensors"))
        if not files:
            raise UserError(f"{path} holds no *.safetensors file; name a folder in HF format.")
        self.metadata: dict[Path, dict[str, str]] = {}
        self.entries: dict[str, Entry] = {}
        """By name, in the order of files and of bytes."""
        for file in files:
            self.entries |= self._read_header(file)
        self._check_index()

    def read(self, name: str) -> Tensor:
        """A tensor. Raises UserError when its bytes cannot be read."""
        entry = self.entries[name]
        tensor = torch.empty(entry.shape, dtype=entry.dtype)
        buffer = content(tensor)
        with entry.path.open("rb", buffering=0) as file:
            file.seek(entry.start)
            while buffer:
                count = file.readinto(buffer)
                if not count:
                    raise UserError(f"{entry.path} was cut short while it was read; copy it again.")
                buffer = buffer[count:]
        return tensor

    def fingerprint(self) -> dict[str, list[Any]]:
        """What tells these files from others: size of each, and sha256 of its header and samples.

        A fine-tune of a model has its names, shapes and sizes; its samples differ.
        """
        found = {}
        for path in self.metadata:
            size = path.stat().st_size
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                digest = hashlib.sha256(file.read(length))
                for number in range(_SAMPLES):
                    file.seek(8 + length + (size - 8 - length) * number // _SAMPLES)
                    digest.update(file.read(_SAMPLE_BYTES))
            found[path.name] = [size, digest.hexdigest()]
        return found

    def _read_header(self, path: Path) -> dict[str, Entry]:
        size = path.stat().st_size
        damaged = UserError(f"{path} is cut short or no safetensors file; copy it again.")
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= size - 8:
                raise damaged
            try:
                header = json.loads(file.read(length))
                self.metadata[path] = header.pop("__metadata__", {})
                found = [(name, *_parsed(about)) for name, about in header.items()]
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise damaged from error
        found.sort(key=lambda one: one[3])
        entries, end = {}, 8 + length
        for name, dtype, shape, start in found:
            entries[name] = Entry(path, dtype, shape, 8 + length + start)
            if entries[name].start != end:
                raise damaged
            end += entries[name].nbytes
        if end != size:
            raise UserError(
                f"{path} has {size} bytes, but its header describes {end}: it is cut short or "
                "damaged; copy it again."
            )
        return entries

    def _check_index(self) -> None:
        """Raises UserError where the index names a file that is missing or lacks a tensor."""
        if not (self.path / INDEX).is_file():
            return
        for name, file in json.loads((self.path / INDEX).read_bytes())["weight_map"].items():
            if name not in self.entries or self.entries[name].path.name != file:
                reason = "lacks it" if (self.path / file).is_file() else "is missing"
                raise UserError(
                    f"{self.path / INDEX} puts {name} in {file}, which {reason}; copy it again."
                )


def header(
    tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], metadata: Mapping[str, str]
) -> bytes:
    """What a file begins with before the bytes of `tensors`, in that order.

    The same to the bit as the library's for the same tensors in the same order.
    """
    described: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + math.prod(shape) * dtype.itemsize
        described[name] = {
            "dtype": _CODES[dtype],
            "shape": list(shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(described, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def content(tensor: Tensor) -> memoryview:
    """A tensor's bytes, where they lie if it is contiguous."""
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().data


def order(dtype: torch.dtype) -> int:
    """Where tensors of a type stand in a file: those of large numbers first, which aligns them."""
    return list(_CODES).index(dtype)


def _parsed(about: Mapping[str, Any]) -> tuple[torch.dtype, tuple[int, ...], int]:
    return _DTYPES[about["dtype"]], tuple(about["shape"]), about["data_offsets"][0]
