"""Forensics of a run of the reference's size: python -m benchmarks.forensics [RUN] [--steps N]

Without RUN writes one (about 2 GB for 100 steps) to a temporary folder. Prints the seconds and the
peak memory of all processes of `glm52 forensics`, and tokens a second and core of its metrics part
beside a plain columnar scan: the same columns of the same steps read by pyarrow and summed. The
targets are 180 s, 4 GB and half of the scan's rate.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time

import pyarrow.compute as pc
import pyarrow.parquet as pq

from glm52_tbench2.analysis.forensics.scan import scan
from glm52_tbench2.analysis.forensics.source import RunSource
from glm52_tbench2.analysis.run_files import RunFiles

_COLUMNS = {
    "rollouts": ("tokens", "loss_mask", "rollout_logprobs", "weight_versions"),
    "train": ("trainer_logprobs", "entropy"),
}
_COMPARED = 8
"""Steps of the comparison."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--steps", type=int, default=100, help="of the run that is written")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = given.run or Path(folder) / "run"
        if given.run is None:
            make = [sys.executable, "-m", "benchmarks.synthetic_run", str(run)]
            subprocess.run([*make, "--steps", str(given.steps)], check=True)
        measure(run)


def measure(run: Path) -> None:
    """Prints the table."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    verb = [sys.executable, "-m", "glm52_tbench2.cli", "forensics", str(run), "--json"]
    started = perf_counter()
    # 1 says that the run is not healthy.
    assert subprocess.run(verb, stdout=subprocess.DEVNULL).returncode < 2
    seconds = perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"glm52 forensics: {seconds:.0f} s, {after.ru_utime - before.ru_utime:.0f} s of CPU, "
        f"largest process {after.ru_maxrss / 2**20:.2f} GiB"
    )
    source = RunSource(RunFiles.open(run))
    steps = source.steps()[-_COMPARED:]
    started, tokens = process_time(), 0
    for step in steps:
        tokens += plain(run, step)
    scanned = process_time() - started
    started = process_time()
    for step in steps:
        found = source.read(step)
        assert found is not None
        scan(found, metrics_only=True)
    judged = process_time() - started
    print(f"plain scan    {tokens / scanned / 1e6:.1f} M tokens/s and core")
    print(f"metrics part  {tokens / judged / 1e6:.1f} M tokens/s and core, {scanned / judged:.2f}")


def plain(run: Path, step: int) -> int:
    """Reads and sums the columns of a step; its tokens."""
    tokens = 0
    for kind, names in _COLUMNS.items():
        path = run / kind / f"step_{step:06d}.parquet"
        table = pq.ParquetFile(path).read(columns=list(names))
        for name in names:
            flat = table[name].combine_chunks().flatten()
            pc.sum(flat)
            tokens = max(tokens, len(flat))
    return tokens


if __name__ == "__main__":
    main()
