"""An evaluation: its finished samples survive any kill.

Of one by itself RUN/eval/pending/ holds the samples until RUN/eval/step_000000.parquet has them,
and RUN/results.jsonl has a line a task, in the order in which tasks end. One within training keeps
its samples in RUN/eval/unfinished_STEP/ as long as it lasts.
"""

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config.files import append_line, atomic_write_bytes
from ..config.pass_at_k import PASS, ks, pass_at_k
from ..config.schema import RunConfig
from .batch import Sample
from .collect import Collector
from .ledger import Ledger
from .outcome import has_verdict

RESULTS_FILE = "results.jsonl"
TAKEN_OVER = "taken_over"
"""Key of the eval file's stats: samples of a driver before the one that ended."""


class Evaluation:
    """Keeps what an evaluation has, and tells of it."""

    def __init__(
        self, run_dir: Path, config: RunConfig, identity: str, tasks: Sequence[str], step: int
    ) -> None:
        """`step`: steps trained before it; its weights are that version."""
        self._path, self._tasks, self._step = run_dir / RESULTS_FILE, tasks, step
        self._each, self._alone = config.eval.samples_per_task, not config.trains
        kind = "eval" if self._alone else f"eval/unfinished_{step:06d}"
        self._folder = run_dir / kind
        self._ledger = Ledger(run_dir, identity, kind, step)
        self._left = self._ledger.left({})
        self._ended: dict[int, list[Sample]] = {}
        """Task's number -> its samples that ended, with a verdict or without."""
        self._there = {(s.group, s.index): s for ss in self._left.samples.values() for s in ss}

    async def run(self, collector: Collector) -> tuple[list[Sample], dict[str, float]]:
        """Plays what is missing; the samples with a verdict, and their cost.

        Raises RolloutError when none gets one.
        """
        for sample in self._there.values():
            self._ended.setdefault(sample.group, []).append(sample)
        if self._alone:
            done = [samples for samples in self._ended.values() if len(samples) == self._each]
            text = "".join(f"{json.dumps(result(samples))}\n" for samples in done)
            await asyncio.to_thread(atomic_write_bytes, self._path, text.encode())
        samples, stats = await collector.evaluation(self._tasks, self._step, self)
        for name, count in self._left.stats.items():
            stats[name] = stats.get(name, 0) + count
        stats[TAKEN_OVER] = len(self._there)
        counted = [s.counted_tokens for s in samples if s.counted_tokens is not None]
        if counted:
            stats["counted_tokens"] = sum(counted)
        return samples, stats

    def written(self) -> None:
        """The file of all samples is on disk: what was kept of them elsewhere may go."""
        if self._alone:
            self._ledger.forget(range(len(self._tasks)))
        else:
            shutil.rmtree(self._folder, ignore_errors=True)

    def kept(self, group: int, index: int) -> Sample | None:
        """See :class:`.collect.Keeper`."""
        return self._there.get((group, index))

    async def keep(self, sample: Sample) -> None:
        """See :class:`.collect.Keeper`."""
        if has_verdict(sample.end_reason):
            await asyncio.to_thread(self._ledger.keep, sample)
        ended = self._ended.setdefault(sample.group, [])
        ended.append(sample)
        if self._alone and len(ended) == self._each:
            append_line(self._path, json.dumps(result(ended)))

    def lost(self, sample: Sample) -> None:
        """See :class:`.collect.Keeper`."""
        self._ledger.lost(sample)


def result(samples: Sequence[Sample]) -> dict[str, Any]:
    """What the samples of one task came to; those without a verdict count as missing alone."""
    judged = [s for s in samples if has_verdict(s.end_reason)]
    passes = sum(s.reward >= PASS for s in judged)
    counted = [s.counted_tokens for s in judged if s.counted_tokens is not None]
    return {
        "task_id": samples[0].task_id,
        "samples": len(judged),
        "missing": len(samples) - len(judged),
        "passes": passes,
        "reward_mean": sum(s.reward for s in judged) / len(judged) if judged else None,
        "pass_at": {str(k): pass_at_k(len(judged), passes, k) for k in ks(len(judged))},
        "end_reasons": dict(sorted(Counter(s.end_reason for s in judged).items())),
        "turns": sum(len(s.turns) for s in judged),
        "generated_tokens": sum(s.num_generated for s in judged),
        "counted_tokens": sum(counted) if counted else None,
        "seconds": round(sum(s.total_s for s in judged), 3),
    }
