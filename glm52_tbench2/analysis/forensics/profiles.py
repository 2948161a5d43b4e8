"""What is told of a family of turns: when, where, which way it is pushed and how it moves."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from ...config.schema import NEAR_CAP
from .families import Family, Member, drift_of
from .members import Reading
from .scan import BINS, TYPES, Scan

SHOWN = 5
"""Samples named a family: the last ones."""


@dataclass
class Move:
    """What an appearance of a family and the updates up to its next one did to its content."""

    step: int
    """The appearance."""
    drift: float | None
    """Mean |D| there, before the update of this step."""
    advantage: float | None
    """Mean over tokens."""
    trainer: float | None
    """Mean log-prob in the trainer there, before the update."""
    rollout: float | None
    """Mean log-prob in the engine."""
    trainer_change: float | None = None
    """Of the trainer's mean log-prob up to the next appearance; None at the last one."""


@dataclass
class Profile:
    """One family; the numbers that the run does not allow are None."""

    name: str
    tasks: list[str]
    steps: list[int]
    turns: int
    tokens_mean: float
    token_share: float
    """Of all tokens generated in the run."""
    advantage: float | None
    """Mean over tokens."""
    negative_share: float | None
    """Of its tokens that are pushed at all (A not 0): those with A < 0."""
    pushed_tokens: int
    """How many are pushed."""
    truncated_share: float
    """Of its turns: those of truncated samples."""
    near_cap_share: float | None
    """Of its turns."""
    looped: float
    """Share of its tokens within loops."""
    likeness: float
    """Least exact similarity of a member with the first."""
    drift_share: float | None
    """Of all |D| in the run."""
    late_drift_share: float | None
    """Of all |D| in the run's last steps."""
    late_token_share: float
    moves: list[Move]
    heat: list[float] | None
    """Mean |D| in each of BINS parts along the turn."""
    in_loop: float | None
    """Mean |D| of tokens within loops."""
    outside: float | None
    """Mean |D| of the others."""
    token_types: list[dict[str, Any]] = field(default_factory=list)
    """id, drift_share (its part of the family's |D|), count and, where the run's tokenizer is at
    hand, text; those with the most first."""
    samples: list[str] = field(default_factory=list)
    """The last ones, as SAMPLE turn N (from 0)."""
    excerpt_ids: list[int] = field(default_factory=list)
    excerpt: str | None = None
    """As text, where the run's tokenizer is at hand."""

    @property
    def first_drift(self) -> float | None:
        """Mean |D| over its first third of appearances, one at least."""
        return self._drift(self.moves[: max(1, len(self.moves) // 3)])

    @property
    def last_drift(self) -> float | None:
        """The same over its last third."""
        return self._drift(self.moves[-max(1, len(self.moves) // 3) :])

    @staticmethod
    def _drift(moves: Sequence[Move]) -> float | None:
        found = [one.drift for one in moves if one.drift is not None]
        return float(np.mean(found)) if found else None


def profile(
    name: str,
    family: Family,
    readings: Mapping[int, Reading],
    scans: Mapping[int, Scan],
    late: Sequence[int],
    cap: float,
) -> Profile:
    """The profile of a family.

    `readings`: step -> what its members there say; `scans`: step -> scan; `late`: the run's last
    steps; `cap`: the per-turn cap, inf: unknown.
    """
    members = family.members
    total = sum(float(scan.length.sum()) for scan in scans.values())
    drifted = sum(scan.total("drift") for scan in scans.values() if scan.scored)
    late_scans = [scans[step] for step in late]
    late_drifted = sum(scan.total("drift") for scan in late_scans if scan.scored)
    late_total = sum(float(scan.length.sum()) for scan in late_scans)
    of_late = [one for one in members if one.step in set(late)]
    pushed = [one for one in members if np.isfinite(one.advantage)]
    pushed_tokens = sum(one.tokens for one in pushed if one.advantage)
    read = list(readings.values())
    inside = np.sum([one.in_loop for one in read], axis=0) if read else np.zeros(2)
    outside = np.sum([one.outside for one in read], axis=0) if read else np.zeros(2)
    heat = np.sum([one.heat for one in read], axis=0) if read else np.zeros(BINS)
    negative = sum(one.tokens for one in pushed if one.advantage < 0)
    return Profile(
        name=name,
        tasks=[task for task, _ in Counter(one.task for one in members).most_common()],
        steps=family.steps,
        turns=len(members),
        tokens_mean=family.tokens / len(members),
        token_share=family.tokens / max(total, 1.0),
        advantage=_weighted(pushed, "advantage"),
        negative_share=negative / pushed_tokens if pushed_tokens else None,
        pushed_tokens=pushed_tokens,
        truncated_share=float(np.mean([one.truncated for one in members])),
        near_cap_share=float(np.mean([one.tokens >= NEAR_CAP * cap for one in members]))
        if math.isfinite(cap)
        else None,
        looped=_weighted(members, "looped") or 0.0,
        likeness=min((min(one.likeness) for one in read if one.likeness), default=1.0),
        drift_share=drift_of(members) / drifted if drifted else None,
        late_drift_share=drift_of(of_late) / late_drifted if late_drifted else None,
        late_token_share=sum(one.tokens for one in of_late) / max(late_total, 1.0),
        moves=_moves(members),
        heat=(heat / sum(one.in_heat for one in read)).tolist() if heat.any() else None,
        in_loop=float(inside[0] / inside[1]) if inside[1] else None,
        outside=float(outside[0] / outside[1]) if outside[1] else None,
        token_types=_types(read, float(inside[0] + outside[0])),
        samples=[f"{one.sample_id} turn {one.number}" for one in members[-SHOWN:]],
    )


def _moves(members: Sequence[Member]) -> list[Move]:
    by_step: dict[int, list[Member]] = {}
    for one in members:
        by_step.setdefault(one.step, []).append(one)
    moves = []
    for step, here in sorted(by_step.items()):
        tokens = sum(one.tokens for one in here)
        drift = drift_of(here) / tokens if all(np.isfinite(one.drift) for one in here) else None
        numbers = (_weighted(here, name) for name in ("advantage", "trainer", "rollout"))
        moves.append(Move(step, drift, *numbers))
    for move, after in pairwise(moves):
        if move.trainer is not None and after.trainer is not None:
            move.trainer_change = after.trainer - move.trainer
    return moves


def _weighted(members: Sequence[Member], name: str) -> float | None:
    """Mean over tokens of a number of each member; None where one does not have it."""
    if not members:
        return None
    tokens = sum(one.tokens for one in members)
    value = sum(getattr(one, name) * one.tokens for one in members) / tokens
    return float(value) if np.isfinite(value) else None


def _types(readings: Sequence[Reading], total: float) -> list[dict[str, Any]]:
    """`total`: the family's |D|."""
    sums: dict[int, float] = {}
    counts: Counter[int] = Counter()
    for one in readings:
        for token, (drift, count) in one.types.items():
            sums[token] = sums.get(token, 0.0) + drift
            counts[token] += count
    most = sorted(sums, key=lambda token: (-sums[token], token))[:TYPES] if total else []
    return [
        {"id": token, "drift_share": sums[token] / total, "count": counts[token]} for token in most
    ]
