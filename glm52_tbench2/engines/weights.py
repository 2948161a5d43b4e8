"""Weights on their way from the trainer to the engines, through a folder.

Each version is a folder of its own, `version_000012`, in Hugging Face's format with the config and
the tokenizer, so an engine that is started anew loads it like any model.
"""

import json
import os
import shutil
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from glm52_tbench2.config.paths import resolve
from glm52_tbench2.config.schema import PauseMode, RunConfig

from .client import EngineError

if TYPE_CHECKING:
    import torch

SHARD_BYTES = 4 * 2**30
"""Largest file of weights, bytes, beside a single larger tensor."""
KEEP = 2
"""Versions kept: the newest, and the one an engine may be loading when it is published."""
UPDATE_TIMEOUT_S = 600.0
"""Longest wait for an engine to load a version, seconds."""

_INDEX = "model.safetensors.index.json"
_VERSION = "version.json"


def weights_dir(config: RunConfig, run_dir: Path) -> Path:
    """Where a run's versions are: engine.weights_dir, in the run folder unless absolute."""
    folder = Path(config.engine.weights_dir)
    return folder / run_dir.name if folder.is_absolute() else run_dir / folder


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
    folder: Path, tensors: Iterable[tuple[str, "torch.Tensor"]], config_src: Path, version: int
) -> Path:
    """Writes `tensors` as `version`, whole or not at all, and removes versions that are too old.

    `config_src` is the folder of the starting weights: its config and tokenizer are copied, and
    `tensors` must have its names and shapes, since an engine leaves a weight that is not there as
    it was. Raises ValueError when they differ, OSError when the disk is full.
    """
    target = folder / f"version_{version:06d}"
    with _whole_folder(target) as temporary:
        written = _write_shards(temporary, tensors)
        _check(written, tensor_shapes(config_src))
        for path in config_src.iterdir():
            if path.is_file() and path.suffix != ".safetensors" and path.name != _INDEX:
                shutil.copyfile(path, temporary / path.name)
        (temporary / _VERSION).write_text(json.dumps({"version": version}))
    older = [path for path in sorted(folder.glob("version_*")) if path < target]
    for old in older[: 1 - KEEP]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def tensor_shapes(folder: Path) -> dict[str, list[int]]:
    """Name -> shape of every tensor in a folder's safetensors files."""
    found: dict[str, list[int]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(size))
        found |= {name: value["shape"] for name, value in header.items() if name != "__metadata__"}
    return found


def push(urls: Sequence[str], folder: Path, version: int, pause_mode: PauseMode) -> list[float]:
    """Makes every engine serve the version in `folder`; seconds each did not generate.

    in_place keeps the KV cache of running requests, which then goes on under the new weights, and
    drops what is cached when there are none; retract drops all of it. Idempotent. Raises
    EngineError that names each engine that does not serve `version` afterwards; the others do.
    """
    with ThreadPoolExecutor(max(1, len(urls))) as pool:
        outcomes = list(pool.map(lambda url: _push_one(url, folder, version, pause_mode), urls))
    failures = [str(outcome) for outcome in outcomes if isinstance(outcome, EngineError)]
    if failures:
        raise EngineError(
            f"weight version {version} was not taken by {len(failures)} of {len(urls)} engines: "
            + "; ".join(failures)
        )
    return [outcome for outcome in outcomes if isinstance(outcome, float)]


def _push_one(url: str, folder: Path, version: int, mode: PauseMode) -> float | EngineError:
    began = perf_counter()
    try:
        _call(url, "POST", "/pause_generation", {"mode": mode.value})
        try:
            _call(
                url,
                "POST",
                "/update_weights_from_disk",
                {
                    "model_path": str(folder.resolve()),
                    "weight_version": str(version),
                    "flush_cache": mode is PauseMode.retract,
                },
            )
            if mode is PauseMode.in_place:
                # Refused with 400 while requests run: their cache stays.
                _call(url, "POST", "/flush_cache", {}, accepted=(200, 400))
        finally:
            _call(url, "POST", "/continue_generation", {})
        seconds = perf_counter() - began
        served = _call(url, "GET", "/model_info", None)["weight_version"]
        if served != str(version):
            raise EngineError(f"{url} serves version {served}")
        return seconds
    except EngineError as error:
        return error


def _call(
    url: str,
    method: str,
    path: str,
    body: Mapping[str, Any] | None,
    accepted: tuple[int, ...] = (200,),
) -> Any:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=UPDATE_TIMEOUT_S)
    headers = {"Content-Type": "application/json"}
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
    except (OSError, HTTPException) as error:
        raise EngineError(f"{url}{path}: {error!r}") from error
    finally:
        connection.close()
    if response.status not in accepted:
        raise EngineError(f"{url}{path}: {response.status} {text[:300]}")
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


@contextmanager
def _whole_folder(target: Path) -> Iterator[Path]:
    """Yields a temporary folder that takes the name `target`, synced, when the body succeeds."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        for path in (*temporary.iterdir(), temporary):
            _sync(path)
        if target.exists():  # published before a resume
            shutil.rmtree(target)
        temporary.rename(target)
        _sync(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_shards(
    folder: Path, tensors: Iterable[tuple[str, "torch.Tensor"]]
) -> dict[str, list[int]]:
    """Writes the tensors and returns their shapes; only one file's worth is held at a time."""
    from safetensors.torch import save_file

    shapes: dict[str, list[int]] = {}
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
        shapes[name] = list(tensor.shape)
        shard[name] = tensor.detach().cpu().contiguous()
        size += tensor.nbytes
    write()
    (folder / _INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return shapes


def _check(written: Mapping[str, list[int]], expected: Mapping[str, list[int]]) -> None:
    differ = sorted(
        name for name in written.keys() | expected.keys() if written.get(name) != expected.get(name)
    )
    if differ:
        shown = ", ".join(
            f"{name} (published {written.get(name)}, starting weights {expected.get(name)})"
            for name in differ[:3]
        )
        raise ValueError(f"{len(differ)} tensors differ from the starting weights': {shown}")
