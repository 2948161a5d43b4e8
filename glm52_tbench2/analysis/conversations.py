"""Episodes as the report's page shows them: token by token, packed until somebody opens one."""

import base64
import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .run_files import Row, RunFiles
from .stats import finite

MOST_BYTES = 16_000_000
"""Of conversations in one page, packed: a browser reads as much in well under a second."""
_AT_ONCE = 512
"""Samples by importance that are sorted by step, so that a step is read once for all of them."""
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
        """Packs the samples `wanted`, (step, id) by importance, until MOST_BYTES are full: no one
        that is left out is more important than one that is not."""
        ranked = list(dict.fromkeys(wanted))
        room = MOST_BYTES
        for begin in range(0, len(ranked), _AT_ONCE):
            portion = ranked[begin : begin + _AT_ONCE]
            fitting, full = _fitting(run, portion, room)
            for sample, text, tokens in fitting:
                room -= len(text)
                self.packed[sample] = text
                self.ids.update(tokens.tolist())
            if full:
                break
        self.left_out = len(ranked) - len(self.packed)


def _fitting(
    run: RunFiles, portion: Sequence[tuple[int, str]], room: int
) -> tuple[list[tuple[str, str, NDArray[Any]]], bool]:
    """The first samples of `portion` that fit into `room`: id, packed text and tokens that occur;
    and whether they fill it. Each step is read once, and never are more texts kept than fit."""
    places: dict[int, dict[str, int]] = {}
    for place, (step, sample) in enumerate(portion):
        places.setdefault(step, {})[sample] = place
    kept: dict[int, tuple[str, str, NDArray[Any]]] = {}
    end = len(portion)
    for step, of_step in places.items():
        if min(of_step.values()) >= end:
            continue
        rows = _rows(run, step)
        for sample, place in of_step.items():
            if sample not in rows or place >= end:
                continue
            text = pack(rows[sample])
            room -= len(text)
            kept[place] = sample, text, np.unique(rows[sample]["tokens"])
            while room < 0:
                end = max(kept)
                room += len(kept.pop(end)[1])
    return [kept[place] for place in sorted(kept)], end < len(portion)


def _rows(run: RunFiles, step: int) -> dict[str, Row]:
    """Sample of a step -> its columns, with `trainer_logprobs` where it has been trained."""
    names = (*_ABOUT, "tokens", "loss_mask", "rollout_logprobs", "weight_versions", "turns")
    found = run.columns("rollouts", step, names)
    if not found or run.lacks("rollouts", step, found, names):
        return {}
    trained = run.trained(step)
    return {
        sample: {name: values[place] for name, values in found.items()}
        | {"trainer_logprobs": trained.get(sample)}
        for place, sample in enumerate(found["sample_id"])
    }


def pack(row: Row) -> str:
    """One conversation: facts, token ids, and of generated tokens both log-probs and versions.

    Arrays are base64 of little-endian numbers: tokens and versions int32 [T], the engine's and the
    trainer's log-probs float32 [T] ("" where the sample is not trained).
    """
    told: dict[str, Any] = {name: row[name] for name in _ABOUT}
    told |= {name: finite(row[name]) for name in ("reward", "advantage")}
    told["turns"] = [[turn["start"], turn["end"]] for turn in row["turns"]]
    for name, kind in (
        ("tokens", "<i4"),
        ("rollout_logprobs", "<f4"),
        ("trainer_logprobs", "<f4"),
        ("weight_versions", "<i4"),
    ):
        values = row[name]
        told[name] = (
            "" if values is None else base64_text(np.asarray(values).astype(kind).tobytes())
        )
    return base64_text(gzip.compress(json.dumps(told).encode(), 5, mtime=0))


def base64_text(content: bytes) -> str:
    """Bytes as a page holds them."""
    return base64.b64encode(content).decode()
