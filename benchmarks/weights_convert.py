"""Cost of converting weights: python benchmarks/weights_convert.py [--gb GB] [OVERRIDE ...]

Makes a folder of random bfloat16 weights in TMPDIR, in the shape of GLM-4.7-Flash with fewer
layers, about GB large, and takes it through import, export and export in fp8, each in a process of
its own, beside a plain copy of the same files. --describe only: how long and how large the
description of the whole model of the overrides is, which both verbs make before they begin.
"""

import argparse
import io
import json
import math
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.schema import RunConfig
from glm52_tbench2.trainer.hf import hf_config


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gb", type=float, default=4.0, help="weights to convert, GB")
    parser.add_argument("--describe", action="store_true", help="only describe the whole model")
    parser.add_argument("overrides", nargs="*", help="as for glm52 train, after experiment=smoke")
    given = parser.parse_args()
    run = compose(["experiment=smoke", "model=glm47_flash", *given.overrides])
    if given.describe:
        seconds, grown, parts = in_a_process(whole_model, run)
        print(f"{run.model.name}: {parts} tensors in {seconds:.1f} s, {grown / 1e6:.0f} MB")
        return 0
    with tempfile.TemporaryDirectory() as name:
        room = Path(name)
        run = sized(run, given.gb * 1e9)
        run = replace(run, model=replace(run.model, path=str(room / "source")))
        largest = in_a_process(make, run)
        total = sum(path.stat().st_size for path in (room / "source").iterdir())
        print(
            f"{run.model.num_layers} layers, {total / 1e9:.2f} GB, largest tensor "
            f"{largest / 1e6:.0f} MB; peak memory above that before the start"
        )
        print("| what | seconds | GB/s | peak, MB | of the largest tensor |")
        print("|---|---|---|---|---|")
        source, checkpoint, back = room / "source", room / "checkpoint", room / "back"
        for what, work, args in (
            ("plain copy", copy, (source, room / "copy")),
            ("import", import_weights, (run, source, checkpoint)),
            ("export", export_weights, (run, checkpoint, back)),
            ("export in fp8", export_weights, (run, checkpoint, room / "fp8", "fp8")),
        ):
            drop_caches(room)
            seconds, grown = in_a_process(measured, work, *args)
            print(
                f"| {what} | {seconds:.1f} | {total / 1e9 / seconds:.2f} | {grown / 1e6:.0f} | "
                f"{grown / largest:.2f} |",
                flush=True,
            )
    return 0


def sized(run: RunConfig, size: float) -> RunConfig:
    """The run with as many layers as make its weights `size` bytes large, at least two."""
    model = run.model
    layer = 3 * model.expert_ffn_size * model.hidden_size * (model.num_experts + 1) * 2
    outside = 2 * model.vocab_size * model.hidden_size * 2
    layers = max(2, round((size - outside) / layer) + 1)
    return replace(run, model=replace(model, num_layers=layers))


def make(run: RunConfig) -> int:
    """Writes random weights of the run's model; the bytes of the largest tensor."""
    import torch

    from glm52_tbench2.trainer.weights.safetensors import content, header

    ready()
    from glm52_tbench2.trainer.weights.layout import describe

    folder = Path(run.model.path)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(hf_config(run.model)))
    parts = describe(run).parts
    noise = torch.randn(max(math.prod(part.shape) for part in parts)).bfloat16()
    size = 4 * 2**30
    while parts:
        here, used = [], 0
        while parts and used < size:
            here.append(parts.pop(0))
            used += 2 * math.prod(here[-1].shape)
        described = {part.name: (torch.bfloat16, part.shape) for part in here}
        with (folder / f"model-{len(parts):06d}.safetensors").open("wb") as file:
            file.write(header(described, {"format": "pt"}))
            for part in here:
                file.write(content(noise[: math.prod(part.shape)]))
    return noise.nbytes


def whole_model(run: RunConfig) -> tuple[float, int, int]:
    """Seconds, bytes and tensors of the description of a model."""
    ready()
    from glm52_tbench2.trainer.weights.layout import describe

    describe(compose(["experiment=smoke"]))  # imports, and the arena of their objects
    before, began = memory("VmRSS"), time.perf_counter()
    parts = describe(run).parts
    return time.perf_counter() - began, memory("VmHWM") - before, len(parts)


def copy(source: Path, target: Path) -> None:
    """A plain copy, on the disk when it returns."""
    target.mkdir()
    for path in source.iterdir():
        shutil.copyfile(path, target / path.name)
        with (target / path.name).open("rb") as file:
            os.fsync(file)


def import_weights(*args: Any) -> None:
    from glm52_tbench2.trainer.weights.importing import import_hf

    import_hf(*args)


def export_weights(*args: Any) -> None:
    from glm52_tbench2.trainer.weights.exporting import export_hf

    export_hf(*args)


def measured(work: Callable[..., None], *args: Any) -> tuple[float, int]:
    """Seconds, and the growth of this process's memory, bytes."""
    if work is not copy:
        ready()
        from glm52_tbench2.trainer.weights.layout import describe

        describe(args[0])
    before, began = memory("VmRSS"), time.perf_counter()
    with redirect_stdout(io.StringIO()):
        work(*args)
    return time.perf_counter() - began, memory("VmHWM") - before


def ready() -> None:
    """Readies Megatron on a CPU."""
    from glm52_tbench2.trainer.cpu import install

    install()


def memory(what: str) -> int:
    """A line of this process's status, bytes."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition(f"{what}:")[2].split()[0])


def drop_caches(room: Path) -> None:
    """Makes the next reader go to the disk, where the system lets us say so."""
    os.sync()
    for path in room.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def in_a_process(do: Callable[..., Any], *args: Any) -> Any:
    """Its result from a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(do, args)


if __name__ == "__main__":
    sys.exit(main())
