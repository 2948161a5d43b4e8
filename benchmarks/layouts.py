"""One training step in a layout of many ranks on this machine, against the same on one rank.

    python -m benchmarks.layouts [OVERRIDE ...]

A small random model with sparse attention, 8 layers of which every other computes indices. Without
overrides the reference layout in small: TP2 x CP4 x PP4 x EP8 on 32 ranks, with recomputation.
Prints the largest differences of log-probs, gradient norm (relative) and updated weights, and the
seconds of the step; exit code 1 where one is above 5e-5.
"""

import argparse
import multiprocessing
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter

import numpy as np

from benchmarks.gpu_check import save_random_model, small_run
from benchmarks.train_step import make_batch  # which makes Megatron run on a CPU
from glm52_tbench2.config.schema import Device, ModelFamily, RunConfig
from glm52_tbench2.trainer import ranks
from glm52_tbench2.trainer.convert import export_hf, load_hf
from glm52_tbench2.trainer.model import build_model, wrap
from glm52_tbench2.trainer.optimizer import build_optimizer
from glm52_tbench2.trainer.step import TrainStep

# Forks share what they have imported.
CONTEXT = multiprocessing.get_context("fork")
TOLERANCE = 5e-5
MODEL = ["model.num_layers=8", "model.index_layers=[1,3,5,7]"]
REFERENCE = [
    "parallel.gpus_per_node=32",
    "parallel.tensor=2",
    "parallel.sequence_parallel=true",
    "parallel.context=4",
    "parallel.pipeline=4",
    "parallel.expert=8",
    "parallel.recompute=full",
    "parallel.max_tokens_per_rank=64",
]


def play_rank(run: RunConfig, rank: int, store: Path, pipe: Connection) -> None:
    """One rank's step; rank 0 sends back what it found and the seconds."""
    import torch.distributed as dist

    size = run.parallel.nodes * run.parallel.gpus_per_node
    ranks.connect(run, dist.FileStore(str(store), size), rank, size)
    model = build_model(run)
    wrapped = wrap(model)
    load_hf(model, Path(run.model.path))
    train = TrainStep(run, wrapped, build_optimizer(run, wrapped))
    started = perf_counter()
    result = train(make_batch(run), 1)
    seconds = perf_counter() - started
    found = {
        f"weight {n}": t.float().numpy().copy() for n, t in export_hf(model, Path(run.model.path))
    }
    if rank == 0:
        found["logp"] = np.concatenate([scores.logp for scores in result.scores])
        found["gradient norm"] = np.array(result.metrics["trainer/grad_norm"])
        pipe.send((found, seconds))
    ranks.disconnect()


def step(run: RunConfig, store: Path) -> tuple[dict[str, np.ndarray], float]:
    """What rank 0 found in a step on all ranks of the run's layout."""
    ours, theirs = CONTEXT.Pipe(duplex=False)
    size = run.parallel.nodes * run.parallel.gpus_per_node
    processes = [
        CONTEXT.Process(target=play_rank, args=(run, rank, store, theirs)) for rank in range(size)
    ]
    for process in processes:
        process.start()
    theirs.close()  # so that the end of rank 0 ends the wait
    found = ours.recv()
    for process in processes:
        process.join()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("overrides", nargs="*", default=REFERENCE)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = small_run(ModelFamily.glm_moe_dsa, Device.cpu, Path(folder), *MODEL, *args.overrides)
        # In a process of its own: one that has computed with threads must not fork.
        saving = CONTEXT.Process(target=save_random_model, args=(run,))
        saving.start()
        saving.join()
        alone = small_run(ModelFamily.glm_moe_dsa, Device.cpu, Path(folder), *MODEL)
        (expected, one_s), (found, many_s) = (
            step(run_, Path(folder) / f"store-{number}") for number, run_ in enumerate((alone, run))
        )
    worst: dict[str, float] = {}
    for name, values in expected.items():
        kind = name.split()[0]
        scale = float(values) if kind == "gradient" else 1.0
        difference = float(np.abs(values - found[name]).max()) / scale
        worst[kind] = max(worst.get(kind, 0.0), difference)
    for kind, difference in worst.items():
        print(f"{kind:<10} largest difference {difference:.1e}")
    print(f"one rank {one_s:.1f} s, {run.parallel.gpus_per_node} ranks {many_s:.1f} s")
    return 0 if max(worst.values()) <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
