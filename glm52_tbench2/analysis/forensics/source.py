"""A step of a run as flat arrays, from a run folder; :mod:`.dumps` reads those of others."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...config.paths import resolve
from ...config.schema import RunConfig
from ..influence import KIND, Apart, influences
from ..run_files import Rows, RunFiles
from ..sentinel.files import rewards_at
from ..stats import Rewards

_SAMPLES = ("sample_id", "task_id", "reward", "advantage", "truncated")
_CONTENT = {"tokens": "i", "loss_mask": "b"}
_SAID = {"rollout_logprobs": "f", "weight_versions": "i"}
_SCORES = {"trainer_logprobs": "f", "entropy": "f"}
"""Columns of a value a token, and the kind of numpy's that it is."""
_VOCABULARY = 2**24
"""No model has as many tokens."""
Columns = dict[str, Sequence[Any]]


@dataclass(frozen=True)
class Step:
    """A step's samples, S of them, and their tokens one after another, N in all.

    What a layout does not have is None.
    """

    step: int
    sample_ids: list[str]
    tasks: list[str]
    groups: list[str] | None
    """[S]; samples of one group share a baseline."""
    rewards: NDArray[np.floating]
    """[S]; NaN where there is none."""
    advantages: NDArray[np.floating] | None
    """[S]"""
    truncated: NDArray[np.bool_] | None
    """[S]"""
    offsets: NDArray[np.int64]
    """[S + 1] where each sample's tokens start, and N."""
    tokens: NDArray[np.integer]
    """[N] prompts, turns and observations."""
    mask: NDArray[np.bool_]
    """[N] True on generated tokens."""
    rollout: NDArray[np.floating] | None
    """[N] the engine's log-probs, read on generated tokens alone; nats."""
    trainer: NDArray[np.floating] | None
    """[N] the trainer's own before the update, read on generated tokens alone; nats."""
    entropy: NDArray[np.floating] | None
    """[N] nats, read on generated tokens alone."""
    versions: NDArray[np.integer] | None
    """[N] weight version that generated a token, read on generated tokens alone."""
    version: int | None
    """The one that trains on the step."""


@dataclass
class About:
    """What is known of a run beside its steps."""

    name: str
    kind: str
    """What it was read as."""
    config: RunConfig | None
    """None: a foreign run, of which no knob is known."""
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    """Step -> what the trainer said of it, by the newest definition of each metric."""
    evals: dict[int, Rewards] = field(default_factory=dict)
    """Steps trained -> held-out task -> rewards."""
    tokenizer: Path | None = None
    """Folder with the run's tokenizer.json."""
    influence: dict[int, Apart] = field(default_factory=dict)
    """Step -> its update, of those that `glm52 influence` took apart."""


class Source(Protocol):
    """A run on disk. It is handed to other processes, so it holds no open file."""

    @property
    def warnings(self) -> list[str]:
        """What could not be read, and so cannot be told; a sentence each."""

    def about(self) -> About:
        """The run without its steps."""

    def steps(self) -> list[int]:
        """Steps that have a file, rising."""

    def read(self, step: int, tokens_only: bool = False) -> Step | None:
        """A step; None, with a warning, where it cannot be read or is empty.

        `tokens_only`: without log-probs, entropy and versions, which are then None.
        """

    def size(self) -> int:
        """Bytes on the disk of what :meth:`read` reads, over all steps."""


@dataclass
class RunSource:
    """A run folder: rollouts/step_N.parquet and, of a step that was trained, train/ the same."""

    run: RunFiles

    @property
    def warnings(self) -> list[str]:
        """As of :class:`Source`."""
        return self.run.warnings

    def about(self) -> About:
        """As of :class:`Source`."""
        config = self.run.config
        return About(
            self.run.name,
            "run folder",
            config,
            self.run.trainer,
            {
                step: found
                for step in self.run.steps("eval")
                if (found := rewards_at(self.run, step))
            },
            resolve(config.model.path),
            {step: one for step in self.run.steps(KIND) if (one := influences(self.run, step))},
        )

    def steps(self) -> list[int]:
        """As of :class:`Source`."""
        return self.run.steps("rollouts")

    def read(self, step: int, tokens_only: bool = False) -> Step | None:
        """As of :class:`Source`."""
        wanted = _CONTENT if tokens_only else _CONTENT | _SAID
        found = self.run.columns("rollouts", step, (*_SAMPLES, *wanted))
        if not found or self.run.lacks("rollouts", step, found, (*_SAMPLES[:3], *_CONTENT)):
            return None
        if (wrong := _wrong(found)) is not None:
            self.run.leave_out("rollouts", step, wrong)
            return None
        scores = {} if tokens_only else self._scores(step, found)
        lengths = np.array([len(row) for row in found["tokens"]], np.int64)
        ids = list(found["sample_id"])
        joined = {
            name: self._joined(step, name, kind, found | scores, lengths)
            for name, kind in (wanted | _SCORES).items()
        }
        if joined["tokens"] is None or joined["loss_mask"] is None:
            return None
        if None in found.get("truncated", ()):
            self.run.warn(f"step {step}: truncated has no value for some samples; it is left out")
            del found["truncated"]
        return Step(
            step=step,
            sample_ids=ids,
            tasks=list(found["task_id"]),
            groups=[one.rpartition("-")[0] for one in ids],
            rewards=_numbers(found["reward"]),
            advantages=_numbers(found["advantage"]) if "advantage" in found else None,
            truncated=np.array(found["truncated"], bool) if "truncated" in found else None,
            offsets=np.append(0, np.cumsum(lengths)),
            tokens=joined["tokens"],
            mask=joined["loss_mask"],
            rollout=joined.get("rollout_logprobs"),
            trainer=joined["trainer_logprobs"],
            entropy=joined["entropy"],
            versions=joined.get("weight_versions"),
            version=step - 1,
        )

    def size(self) -> int:
        """As of :class:`Source`."""
        return sum(
            path.stat().st_size
            for kind in ("rollouts", "train")
            for path in self.run.path.glob(f"{kind}/step_*.parquet")
        )

    def _scores(self, step: int, samples: Columns) -> Columns:
        """The trainer's columns in the order of the samples; {} where they are of others."""
        found = self.run.columns("train", step, ("sample_id", *_SCORES))
        if not found or self.run.lacks("train", step, found, ("sample_id", "trainer_logprobs")):
            return {}
        if found["sample_id"] != samples["sample_id"]:
            self.run.warn(f"train/step_{step:06d}.parquet is of other samples than its rollouts")
            return {}
        return found

    def _joined(
        self, step: int, name: str, kind: str, found: Columns, lengths: NDArray[np.int64]
    ) -> Any:
        """The rows of a column one after another; None where it is missing or contradicts."""
        rows = found.get(name)
        if rows is None:
            return None
        if not isinstance(rows, Rows) or rows.flat.dtype.kind != kind:
            self.run.warn(f"step {step}: {name} has tokens without a value; it is left out")
            return None
        if not np.array_equal(np.diff(rows.offsets), lengths):
            self.run.warn(f"step {step}: {name} and tokens differ in length; {name} is left out")
            return None
        return rows.flat


def _wrong(found: Columns) -> str | None:
    """Why a step's samples can't be told apart or read; None where they can."""
    if not found["sample_id"]:
        return "has no samples"
    if nulls := [name for name in _SAMPLES[:2] if None in found[name]]:
        return f"has samples without {', '.join(nulls)}"
    tokens = found["tokens"]
    if not isinstance(tokens, Rows) or not are_tokens(tokens.flat):
        return "has tokens that are no token ids"
    if not np.diff(tokens.offsets).all():
        return "has samples without tokens"
    return None


def are_tokens(ids: NDArray[Any]) -> bool:
    """Whether numbers are token ids, one at least."""
    known = ids.dtype.kind in "iu" and ids.size > 0
    return bool(known and ids.min() >= 0 and ids.max() < _VOCABULARY)


def _numbers(values: Sequence[Any]) -> NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values], np.float64)


def spans(mask: NDArray[np.bool_], offsets: NDArray[np.int64]) -> tuple[Any, Any]:
    """[K] first and [K] one-past-last token of each turn: runs of generated tokens in a sample."""
    change = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    if len(mask) and mask[0]:
        change = np.append(0, change)
    inside = offsets[1:-1][(offsets[1:-1] > 0) & (offsets[1:-1] < len(mask))]
    split = inside[mask[inside] & mask[inside - 1]]  # a sample that follows on a turn's end
    starts, ends = np.union1d(change[::2], split), np.union1d(change[1::2], split)
    return starts, np.append(ends, len(mask)) if len(ends) < len(starts) else ends
