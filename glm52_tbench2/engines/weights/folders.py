"""Weights in folders, a version each.

Each version is a folder of its own, `version_000012`, in Hugging Face's format with the config and
the tokenizer, so an engine that is started anew loads it like any model.
"""

import json
import os
import shutil
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from glm52_tbench2.config.files import sync
from glm52_tbench2.config.paths import of_run, resolve
from glm52_tbench2.config.schema import RunConfig

from . import fp8

if TYPE_CHECKING:
    import torch

SHARD_BYTES = 4 * 2**30
"""Largest file of weights, bytes, beside a single larger tensor."""
KEEP = 2
"""Versions kept: the newest, and the one an engine may be loading when it is published."""

_INDEX = "model.safetensors.index.json"
_VERSION = "version.json"


def weights_dir(config: RunConfig, run_dir: Path) -> Path:
    """Where a run's versions are."""
    return of_run(config.engine.weights_dir, run_dir)


def to_serve(config: RunConfig, run_dir: Path) -> tuple[Path, int]:
    """What an engine loads when it starts: the newest published version, else version 0."""
    return latest(weights_dir(config, run_dir)) or (resolve(config.model.path), 0)


def latest(folder: Path) -> tuple[Path, int] | None:
    """The newest version's folder and number; None before the first is published."""
    found = [
        (json.loads(path.read_bytes())["version"], path.parent)
        for path in folder.glob(f"version_*/{_VERSION}")
    ]
    version, newest = max(found, default=(0, None))
    return None if newest is None else (newest, version)


def publish(
    folder: Path,
    tensors: Iterable[tuple[str, "torch.Tensor"]],
    config_src: Path,
    version: int,
    dtype: str = "",
) -> Path:
    """Writes `tensors` as `version`, whole or not at all, and removes versions that are too old.

    `config_src` is the folder of the starting weights: its config and tokenizer are copied, and
    `tensors` must have its names and shapes. With `dtype` fp8 they are written in that. Raises
    ValueError when they differ, OSError when the disk is full.
    """
    target = folder / f"version_{version:06d}"
    with _whole_folder(target) as temporary:
        _write_shards(temporary, outgoing(tensors, config_src, dtype))
        copy_beside(config_src, temporary, dtype)
        (temporary / _VERSION).write_text(json.dumps({"version": version}))
    older = [path for path in sorted(folder.glob("version_*")) if path < target]
    for old in older[: 1 - KEEP]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def outgoing(
    tensors: Iterable[tuple[str, "torch.Tensor"]], start: Path, dtype: str
) -> Iterator[tuple[str, "torch.Tensor"]]:
    """The tensors as an engine of engine.dtype `dtype` takes them.

    After the last, ValueError if names or shapes are not those in `start`: an engine leaves a
    weight that it is not given as it was.
    """
    whole = _like_start(tensors, start)
    if dtype == "fp8_rounded":
        return fp8.rounded(whole)
    return fp8.quantised(whole) if dtype == "fp8" else whole


def copy_beside(start: Path, folder: Path, dtype: str) -> None:
    """Gives a folder of weights the config and the tokenizer of the folder `start`."""
    for path in start.iterdir():
        if path.is_file() and path.suffix != ".safetensors" and path.name != _INDEX:
            shutil.copyfile(path, folder / path.name)
    if dtype == "fp8":
        config = json.loads((start / "config.json").read_bytes())
        config["quantization_config"] = fp8.config_entry(tensor_shapes(start))
        (folder / "config.json").write_text(json.dumps(config, indent=2))


def _like_start(
    tensors: Iterable[tuple[str, "torch.Tensor"]], start: Path
) -> Iterator[tuple[str, "torch.Tensor"]]:
    got: dict[str, list[int]] = {}
    for name, tensor in tensors:
        got[name] = list(tensor.shape)
        yield name, tensor
    if wrong := _differences(got, tensor_shapes(start)):
        raise ValueError(wrong)


def tensor_shapes(folder: Path) -> dict[str, list[int]]:
    """Name -> shape of every tensor in a folder's safetensors files."""
    found: dict[str, list[int]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(size))
        found |= {name: value["shape"] for name, value in header.items() if name != "__metadata__"}
    return found


def forget_after(folder: Path, version: int) -> None:
    """Removes later versions, of steps that were lost: an engine must not start from one."""
    for path in folder.glob("version_*"):
        if int(path.name.removeprefix("version_")) > version:
            shutil.rmtree(path)


@contextmanager
def _whole_folder(target: Path) -> Iterator[Path]:
    """Yields a temporary folder that takes the name `target`, synced, when the body succeeds."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    for left in target.parent.glob(".version_*.tmp"):  # of trainers that were killed meanwhile
        shutil.rmtree(left, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        for path in (*temporary.iterdir(), temporary):
            sync(path)
        if target.exists():  # published before a resume
            shutil.rmtree(target)
        temporary.rename(target)
        sync(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_shards(folder: Path, tensors: Iterable[tuple[str, "torch.Tensor"]]) -> None:
    """Writes the tensors; only one file's worth is held at a time."""
    from safetensors.torch import save_file

    files: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}

    def write() -> None:
        name = f"model-{len(set(files.values())) + 1:05d}.safetensors"
        save_file(shard, folder / name, metadata={"format": "pt"})
        files.update(dict.fromkeys(shard, name))
        shard.clear()

    size = 0
    for name, tensor in tensors:
        if shard and size + tensor.nbytes > SHARD_BYTES:
            write()
            size = 0
        shard[name] = tensor.detach().cpu().contiguous()
        size += tensor.nbytes
    write()
    (folder / _INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}))


def _differences(got: Mapping[str, list[int]], expected: Mapping[str, list[int]]) -> str:
    differ = sorted(
        name for name in got.keys() | expected.keys() if got.get(name) != expected.get(name)
    )
    shown = ", ".join(
        f"{name} (published {got.get(name)}, starting weights {expected.get(name)})"
        for name in differ[:3]
    )
    return f"{len(differ)} tensors differ from the starting weights': {shown}" if differ else ""
