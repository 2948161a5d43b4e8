"""Episodes as the report's page shows them: token by token, packed until somebody opens one."""

import base64
import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .run_files import Row, RunFiles

MOST_BYTES = 16_000_000
"""Of conversations in one page, packed: a browser reads as much in well under a second."""
_ABOUT = ("sample_id", "task_id", "reward", "advantage", "end_reason", "truncated")


@dataclass
class Conversations:
    """Those that fit into a page."""

    packed: dict[str, str] = field(default_factory=dict)
    """Sample -> base64 of gzip of its JSON, see :func:`pack`."""
    ids: set[int] = field(default_factory=set)
    """Every token that occurs."""
    left_out: int = 0

    def add(self, run: RunFiles, wanted: Iterable[tuple[int, str]]) -> None:
        """Packs the samples `wanted`, (step, id) by importance, until MOST_BYTES are full."""
        size = 0
        by_step: dict[int, list[str]] = {}
        for step, sample in dict.fromkeys(wanted):
            by_step.setdefault(step, []).append(sample)
        for step, samples in by_step.items():
            if size > MOST_BYTES:
                self.left_out += len(samples)
                continue
            for sample, row in _rows(run, step, samples):
                text = "" if size > MOST_BYTES else pack(row)
                if not text or (size := size + len(text)) > MOST_BYTES:
                    self.left_out += 1
                    continue
                self.packed[sample] = text
                self.ids.update(np.unique(row["tokens"]).tolist())


def _rows(run: RunFiles, step: int, samples: Sequence[str]) -> Iterator[tuple[str, Row]]:
    """Every column of some samples of a step, with `trainer_logprobs` where it has been trained."""
    found = run.columns(
        "rollouts",
        step,
        (*_ABOUT, "tokens", "loss_mask", "rollout_logprobs", "weight_versions", "turns"),
    )
    trained = run.trained(step)
    for place, sample in enumerate(found.get("sample_id", [])):
        if sample in samples:
            row = {name: values[place] for name, values in found.items()}
            yield sample, row | {"trainer_logprobs": trained.get(sample)}


def pack(row: Row) -> str:
    """One conversation: facts, token ids, and of generated tokens both log-probs and versions.

    Arrays are base64 of little-endian numbers: tokens and versions int32 [T], the engine's and the
    trainer's log-probs float32 [T] ("" where the sample is not trained).
    """
    told: dict[str, Any] = {name: row.get(name) for name in _ABOUT}
    told["turns"] = [[turn["start"], turn["end"]] for turn in row.get("turns", [])]
    for name, kind in (
        ("tokens", "<i4"),
        ("rollout_logprobs", "<f4"),
        ("trainer_logprobs", "<f4"),
        ("weight_versions", "<i4"),
    ):
        values = row.get(name)
        told[name] = (
            "" if values is None else base64_text(np.asarray(values).astype(kind).tobytes())
        )
    return base64_text(gzip.compress(json.dumps(told).encode(), 5, mtime=0))


def base64_text(content: bytes) -> str:
    """Bytes as a page holds them."""
    return base64.b64encode(content).decode()
