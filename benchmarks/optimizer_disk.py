"""The optimizer's state on disk against plain reads and writes of the same bytes, in one run.

    python -m benchmarks.optimizer_disk [--gib N] [--repeats N] [OVERRIDE ...]

One update of Adam on a state of N GiB (float32 master weights and two moments, in
optim.state_bucket_bytes) reads it once and writes it once. Plain is the same file, buckets and
order: all reads one after another, then all writes, and no arithmetic. Both go past the page cache
(O_DIRECT), into space that was reserved and has been written before, without fsync. They take
turns; prints the median of each and of the ratio of neighbouring turns: plain's time over that of
the update, which is its share of the disk's throughput. The target is at least 0.8.
"""

import argparse
import statistics
from pathlib import Path
from time import perf_counter

from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.paths import resolve
from glm52_tbench2.trainer.cpu import install

install()
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core.optimizer import ChainedOptimizer, OptimizerConfig  # noqa: E402
from megatron.core.optimizer.optimizer import FP32Optimizer  # noqa: E402

from glm52_tbench2.trainer import ranks  # noqa: E402
from glm52_tbench2.trainer.disk_adam.optimizer import on_disk  # noqa: E402
from glm52_tbench2.trainer.disk_adam.state_file import StateFile  # noqa: E402
from glm52_tbench2.trainer.disk_adam.stream import make_buffers  # noqa: E402

_GIB = 2**30
_STATE = 3 * 4  # bytes of a parameter's state


def parameters(num_elements: int) -> list[torch.Tensor]:
    """Weights in bfloat16, each with a gradient, as large as a layer's experts have them."""
    sizes = [6144 * 2048] * (num_elements // (6144 * 2048)) or [num_elements]
    found = []
    for size in sizes:
        weight = torch.nn.Parameter(torch.randn(size, dtype=torch.bfloat16))
        weight.main_grad = torch.randn(size)  # type: ignore[attr-defined]
        found.append(weight)
    return found


def plain(file: StateFile, bucket: torch.Tensor) -> tuple[float, float]:
    """Seconds of reading one version and of writing the other."""
    starts = range(0, file.length, bucket.size(1))
    times = [perf_counter()]
    for version, move in enumerate((file.read, file.write)):
        for start in starts:
            move(version, start, bucket[:, : file.length - start])
        times.append(perf_counter())
    return times[1] - times[0], times[2] - times[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gib", type=float, default=3.0, help="state, GiB")
    parser.add_argument("--repeats", type=int, default=5, help="timed updates")
    parser.add_argument("overrides", nargs="*", help="as for glm52 train, after experiment=smoke")
    given = parser.parse_args()
    run = compose(["experiment=smoke", *given.overrides])
    ranks.connect(run, dist.HashStore(), 0, 1)
    weights = parameters(int(given.gib * _GIB / _STATE))
    optim = run.optim
    config = OptimizerConfig(optimizer="adam", lr=optim.lr, clip_grad=0.0)
    group = {"params": weights, "wd_mult": 1.0, "lr_mult": 1.0}
    inner = FP32Optimizer(torch.optim.AdamW([group], lr=optim.lr), config, lambda *_: None)
    inner.tp_group = None
    folder: Path = resolve(optim.state_dir)
    (adam,) = on_disk(
        ChainedOptimizer([inner]), folder, optim.state_bucket_bytes
    ).chained_optimizers
    file = StateFile(folder, 3, sum(weight.numel() for weight in weights))
    bucket = make_buffers(3, optim.state_bucket_bytes, file.length, pinned=False)[0].zero_()
    print(
        f"{file.nbytes / _GIB:.2f} GiB of state in {folder}, buckets of "
        f"{bucket.nbytes / 2**20:.0f} MiB, {torch.get_num_threads()} threads"
    )
    adam.prepare_grads()
    for version in (0, 1):
        for start in range(0, file.length, bucket.size(1)):
            file.write(version, start, bucket[:, : file.length - start])
        adam.step_with_ready_grads()

    reads, writes, updates = [], [], []
    for _ in range(given.repeats):
        read_s, write_s = plain(file, bucket)
        started = perf_counter()
        adam.step_with_ready_grads()
        updates.append(perf_counter() - started)
        reads.append(read_s)
        writes.append(write_s)
    for name, times, passes in (
        ("plain read", reads, 1),
        ("plain write", writes, 1),
        ("update", updates, 2),
    ):
        median = statistics.median(times)
        print(
            f"{name:12} median {median:.2f} s, {passes * file.nbytes / _GIB / median:.2f} GiB/s, "
            f"{min(times):.2f} to {max(times):.2f} s"
        )
    ratios = [(r + w) / u for r, w, u in zip(reads, writes, updates, strict=True)]
    print(
        f"ratio        median {statistics.median(ratios):.2f} of {len(ratios)} pairs, "
        f"{min(ratios):.2f} to {max(ratios):.2f}"
    )
    ranks.disconnect()


if __name__ == "__main__":
    main()
