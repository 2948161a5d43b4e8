"""What a run's folder holds for the sentinel, and what the sentinel has said."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..run_files import RunFiles
from ..stats import Rewards
from .facts import StepFacts, observe, read

ALARMS_FILE = "alarms.jsonl"
_COLUMNS = (
    "sample_id",
    "task_id",
    "reward",
    "advantage",
    "truncated",
    "tokens",
    "loss_mask",
    "rollout_logprobs",
    "turns",
)


@dataclass(frozen=True)
class Alarm:
    """A sign that was found at a step, after it had not been for some time."""

    step: int
    sign: str
    """A name of Sign."""
    action: str
    """What was done: a name of SentinelAction."""
    sentence: str
    tasks: list[str] = field(default_factory=list)
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def since(self) -> int:
        """The step its evidence begins with, or else that of the alarm."""
        return self.evidence.get("since", self.step)


def alarms(run_dir: Path) -> list[Alarm]:
    """What the run's sentinel said, oldest first; of a step that was trained twice, once."""
    path = run_dir / ALARMS_FILE
    found = {}
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            alarm = Alarm(**json.loads(line))
        except (ValueError, TypeError):  # cut by a kill
            continue
        found[alarm.step, alarm.sign] = alarm
    return sorted(found.values(), key=lambda alarm: alarm.step)


def facts_at(run: RunFiles, step: int) -> StepFacts | None:
    """The facts of a step: as they were kept, else from its files; None without these."""
    if (kept := read(run.path, step)) is not None:
        return kept
    samples = run.columns("rollouts", step, _COLUMNS)
    scores = run.trained(step)
    if not samples:
        return None
    if run.lacks("rollouts", step, samples, _COLUMNS):
        return None
    if list(samples["sample_id"]) != list(scores):
        return None
    rows = [
        SimpleNamespace(**dict(zip(samples, row, strict=True)))
        for row in zip(*samples.values(), strict=True)
    ]
    for row in rows:
        row.turns = [SimpleNamespace(**turn) for turn in row.turns]
    metrics = run.trainer.get(step, {})
    cap = run.config.rollout.max_turn_tokens
    return observe(step, rows, list(scores.values()), metrics, cap)


def rewards_at(run: RunFiles, step: int) -> Rewards:
    """Held-out task -> rewards, of the evaluation after `step` steps; {} if it is not readable.

    What is no verdict on a task is left out, with a warning.
    """
    found: dict[str, list[float]] = {}
    rows = run.rows("eval", step, ("task_id", "reward"))
    for row in rows:
        task, reward = row["task_id"], row["reward"]
        if task is not None and isinstance(reward, int | float) and math.isfinite(reward):
            found.setdefault(task, []).append(reward)
    if lost := len(rows) - sum(map(len, found.values())):
        run.warn(
            f"eval/step_{step:06d}.parquet: {lost} of {len(rows)} samples have no task_id or no "
            "reward; left out"
        )
    return found
