"""What the sentinel keeps of a step: RUN/sentinel/step_N.json, a few kilobytes.

Made by the trainer from the batch it has just trained, or from the run's files afterwards: the
same either way.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...config.files import atomic_write_bytes
from ...config.schema import NEAR_CAP
from .sketch import Sketch, sketch

FOLDER = "sentinel"
WATCHED = (
    "trainer/train_rollout_kl",
    "trainer/entropy",
    "trainer/grad_norm",
    "trainer/update_norm",
    "trainer/weight_zero_share",
    *(
        f"trainer/mismatch/{split}{name}"
        for split in ("", "turn_near_cap/", "advantage_negative_truncated/")
        for name in ("abs_mean", "token_share")
        if split or name == "abs_mean"
    ),
    "trainer/mismatch/zero_share",
)
"""Metrics of the trainer that detectors read."""


class Turn(Protocol):
    """A turn of a sample."""

    start: int
    end: int


class Sample(Protocol):
    """A sample of a batch: :class:`glm52_tbench2.rollout.batch.Sample`, or the row of a file."""

    sample_id: str
    task_id: str
    reward: float
    advantage: float
    truncated: bool
    tokens: Any
    loss_mask: Any
    rollout_logprobs: Any
    turns: Any


@dataclass(frozen=True)
class GiantTurn:
    """A turn near the per-turn cap."""

    sample_id: str
    task: str
    turn: int
    """Its number in the episode, from 0."""
    tokens: int
    advantage: float
    drift: float
    """Mean |log p_trainer - log p_rollout| over its tokens."""
    sketch: Sketch


@dataclass(frozen=True)
class Visit:
    """The groups of one task in one step."""

    rewards: list[float]
    tokens: int
    """Generated."""
    pull: float
    """Mean advantage over generated tokens: below 0, most of what was said is pushed down."""
    drift: float
    """Mean |log p_trainer - log p_rollout| over generated tokens."""
    truncated: int
    giant_turns: int


@dataclass(frozen=True)
class StepFacts:
    """One step."""

    step: int
    metrics: dict[str, float]
    """WATCHED, where the trainer has them, and shares of the batch: rollout/..., as the driver's.
    """
    visits: dict[str, Visit]
    """Task -> its visit."""
    giants: list[GiantTurn] = field(default_factory=list)


def observe(
    step: int,
    samples: Sequence[Sample],
    trainer_logprobs: Sequence[NDArray[np.floating]],
    metrics: Mapping[str, float],
    max_turn_tokens: int,
) -> StepFacts:
    """The facts of a step.

    Args:
        trainer_logprobs: one [T] a sample: the trainer's own, before the update; read on generated
            tokens alone.
        metrics: the trainer's, of this step.
        max_turn_tokens: the per-turn cap.
    """
    drifts = [
        _drift(sample, np.asarray(logp))
        for sample, logp in zip(samples, trainer_logprobs, strict=True)
    ]
    giants = [
        giant
        for sample, drift in zip(samples, drifts, strict=True)
        for giant in _giants(sample, drift, max_turn_tokens)
    ]
    visits = {}
    for task in dict.fromkeys(sample.task_id for sample in samples):
        members = [i for i, sample in enumerate(samples) if sample.task_id == task]
        visits[task] = _visit([samples[i] for i in members], [drifts[i] for i in members], giants)
    kept = {name: float(metrics[name]) for name in WATCHED if name in metrics}
    return StepFacts(step, kept | _shares(samples), visits, giants)


def near_cap(turn: Turn, max_turn_tokens: int) -> bool:
    """Whether a turn is a giant one."""
    return bool(turn.end - turn.start >= NEAR_CAP * max_turn_tokens)


def path(run_dir: Path, step: int) -> Path:
    """Where the facts of a step lie."""
    return run_dir / FOLDER / f"step_{step:06d}.json"


def write(run_dir: Path, facts: StepFacts) -> None:
    """Keeps the facts of a step."""
    atomic_write_bytes(path(run_dir, facts.step), json.dumps(asdict(facts)).encode())


def read(run_dir: Path, step: int) -> StepFacts | None:
    """The facts of a step as they were kept; None where they are not there or not whole."""
    try:
        found = json.loads(path(run_dir, step).read_text())
        return StepFacts(
            found["step"],
            found["metrics"],
            {task: Visit(**visit) for task, visit in found["visits"].items()},
            [
                GiantTurn(**{**giant, "sketch": Sketch(**giant["sketch"])})
                for giant in found["giants"]
            ],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _drift(sample: Sample, logp: NDArray[np.floating]) -> NDArray[np.floating]:
    """[T] float32: |D| on generated tokens, 0 elsewhere and where it is not finite."""
    distance = np.abs(logp - np.asarray(sample.rollout_logprobs, np.float32))
    return np.where(np.asarray(sample.loss_mask) & np.isfinite(distance), distance, 0.0)


def _giants(
    sample: Sample, drift: NDArray[np.floating], max_turn_tokens: int
) -> Iterator[GiantTurn]:
    for number, turn in enumerate(sample.turns):
        if near_cap(turn, max_turn_tokens):
            said = np.asarray(sample.tokens)[turn.start : turn.end]
            yield GiantTurn(
                sample.sample_id,
                sample.task_id,
                number,
                len(said),
                float(sample.advantage),
                float(drift[turn.start : turn.end].mean()),
                sketch(said),
            )


def _visit(
    samples: Sequence[Sample], drifts: Sequence[NDArray[np.floating]], giants: Sequence[GiantTurn]
) -> Visit:
    counts = [int(np.sum(sample.loss_mask)) for sample in samples]
    total = max(1, sum(counts))
    pull = sum(n * sample.advantage for n, sample in zip(counts, samples, strict=True)) / total
    return Visit(
        rewards=[float(sample.reward) for sample in samples],
        tokens=sum(counts),
        pull=float(pull),
        drift=float(sum(drift.sum() for drift in drifts) / total),
        truncated=sum(bool(sample.truncated) for sample in samples),
        giant_turns=sum(giant.task == samples[0].task_id for giant in giants),
    )


def _shares(samples: Sequence[Sample]) -> dict[str, float]:
    groups: dict[str, set[float]] = {}
    for sample in samples:
        groups.setdefault(sample.sample_id.rpartition("-")[0], set()).add(sample.advantage)
    return {
        "rollout/reward_mean": float(np.mean([sample.reward for sample in samples])),
        "rollout/truncated_share": float(np.mean([sample.truncated for sample in samples])),
        "rollout/sample_tokens_mean": float(np.mean([len(sample.tokens) for sample in samples])),
        "rollout/zero_signal_share": float(
            np.mean([not any(advantages) for advantages in groups.values()])
        ),
    }
