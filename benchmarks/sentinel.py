"""Cost of the sentinel a step, at the reference's size: python benchmarks/sentinel.py

100 steps of 64 samples of up to 65,536 tokens, with as many turns near the cap as the published
runs had: 68 a step at first, 2 late. Judging is what detectors take; observing, which reads every
generated token once and makes sketches of giant turns, is told apart.
"""

import tempfile
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from glm52_tbench2.analysis.sentinel import facts
from glm52_tbench2.analysis.sentinel.watch import Judge
from glm52_tbench2.config.compose import compose

STEPS, SAMPLES, TOKENS, CAP = 100, 64, 65_536, 8192
CASES = {"68 giant turns a step": 68, "2 giant turns a step": 2}


def batch(rng: np.random.Generator, step: int, giants: int) -> list[Any]:
    """Samples of 8 tasks. Half of the giant turns are loops of the same 200 tokens."""
    loop = np.random.default_rng(0).integers(0, 150_000, 200)
    samples = []
    for number in range(SAMPLES):
        mine = giants // SAMPLES + (number < giants % SAMPLES)
        lengths = [CAP] * mine + [400] * 12
        starts = np.cumsum([2000, *[length + 1000 for length in lengths]])
        tokens = rng.integers(0, 150_000, min(TOKENS, int(starts[-1]))).astype(np.int32)
        mask = np.zeros(len(tokens), bool)
        turns = []
        for start, length in zip(starts, lengths, strict=False):
            mask[start : start + length] = True
            if length == CAP and number % 2:
                tokens[start : start + length] = np.resize(loop, length)
            turns.append(SimpleNamespace(start=int(start), end=int(start + length)))
        samples.append(
            SimpleNamespace(
                sample_id=f"{step:06d}-{number // 8}-{number % 8}",
                task_id=f"task-{(8 * step + number // 8) % 69}",
                reward=float(number % 2),
                advantage=1.0 if number % 2 else -1.0,
                truncated=bool(mine),
                tokens=tokens,
                loss_mask=mask,
                rollout_logprobs=np.where(mask, -0.5, 0).astype(np.float32),
                turns=turns,
            )
        )
    return samples


def main() -> None:
    """Prints one table: median and maximum milliseconds of a step."""
    table = Table("", "judging", "observing and keeping")
    config = compose([])
    for name, giants in CASES.items():
        rng, judge = np.random.default_rng(1), Judge(config)
        judging, observing = [], []
        with tempfile.TemporaryDirectory() as folder:
            for step in range(1, STEPS + 1):
                samples = batch(rng, step, giants)
                logps = [s.rollout_logprobs + np.float32(0.01) for s in samples]
                metrics = {one: float(rng.uniform(0.022, 0.054)) for one in facts.WATCHED}
                began = time.perf_counter()
                found = facts.observe(step, samples, logps, metrics, CAP)
                facts.write(Path(folder), found)
                between = time.perf_counter()
                judge.add(found)
                judging.append(1e3 * (time.perf_counter() - between))
                observing.append(1e3 * (between - began))
        table.add_row(
            name, *(f"{median(x):.1f}, at most {max(x):.1f} ms" for x in (judging, observing))
        )
    Console().print(table)


if __name__ == "__main__":
    main()
