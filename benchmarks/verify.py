"""Time of `glm52 verify` at the reference's scale: python benchmarks/verify.py [STEPS]

Writes a run of STEPS (2) steps of 64 samples of 65,536 tokens into a temporary place, and the same
run again, then prints seconds a step: one run for being whole, and the two for being identical.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from glm52_tbench2.analysis.verify import verify_one, verify_two
from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.files import SCHEMA_VERSION
from glm52_tbench2.config.identity import load_identity
from glm52_tbench2.launch.run_folder import create
from glm52_tbench2.rollout.batch import Sample, Turn, batch_path, write_batch

SAMPLES, TOKENS, TURNS, PROMPT = 64, 65_536, 16, 1_024
TURN = TOKENS // TURNS


def sample(step: int, index: int) -> Sample:
    """Half of its tokens generated, in turns answered by observations."""
    rng = np.random.default_rng([step, index])
    mask = np.zeros(TOKENS, dtype=bool)
    starts = range(PROMPT, TOKENS, TURN)
    for start in starts:
        mask[start : start + TURN // 2] = True
    return Sample(
        sample_id=f"{step:06d}-{index // 8}-{index % 8}",
        step=step,
        group=index // 8,
        index=index % 8,
        task_id=f"task-{index // 8}",
        end_reason="task_complete",
        reward=float(index % 2),
        truncated=False,
        tokens=rng.integers(0, 150_000, TOKENS, dtype=np.int32),
        loss_mask=mask,
        rollout_logprobs=np.where(mask, -rng.random(TOKENS), 0).astype(np.float32),
        weight_versions=np.where(mask, step - 1, -1).astype(np.int32),
        turns=[
            Turn(start, start + TURN // 2, "stop", 1.0, 0, "ls", 0, 0.1, "x" * 4000)
            for start in starts
        ],
        prompt_tokens=PROMPT,
    )


def write_step(run_dir: Path, step: int, samples: list[Sample], identity: str) -> None:
    write_batch(batch_path(run_dir, "rollouts", step), samples, identity, step)
    scores = pa.array([s.rollout_logprobs * 1.01 for s in samples], pa.list_(pa.float32()))
    ids = pa.array([s.sample_id for s in samples])
    table = pa.table({"sample_id": ids, "trainer_logprobs": scores, "entropy": scores})
    metadata = {"schema_version": SCHEMA_VERSION, "identity": identity, "step": str(step)}
    path = batch_path(run_dir, "train", step)
    path.parent.mkdir(exist_ok=True)
    pq.write_table(
        table.replace_schema_metadata(metadata), path, compression="zstd", write_page_checksum=True
    )


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            "experiment=smoke",
            f"runs_dir={folder}",
            "rollout.prompts_per_step=8",
            "rollout.samples_per_prompt=8",
        ]
        runs = [create(compose(overrides)) for _ in range(2)]
        for step in range(1, steps + 1):
            samples = [sample(step, index) for index in range(SAMPLES)]
            for run in runs:
                write_step(run, step, samples, load_identity(run)[0].hash)
        size = sum(path.stat().st_size for path in runs[0].rglob("*.parquet")) / steps
        print(f"{size / 1e6:.0f} MB a step and run")
        for name, work in (
            ("one run", lambda: verify_one(runs[0], lambda line: None)),
            ("two runs", lambda: verify_two(*runs, tell=lambda line: None)),
        ):
            began, cpu = time.perf_counter(), time.process_time()
            work()
            seconds, busy = time.perf_counter() - began, time.process_time() - cpu
            print(f"{name:<10}{seconds / steps:6.2f} s a step, {busy / steps:.2f} s of CPU")
        peak = psutil.Process(os.getpid()).memory_info().rss / 1e9
        print(f"memory at the end {peak:.1f} GB")


if __name__ == "__main__":
    main()
