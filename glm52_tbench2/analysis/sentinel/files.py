"""What a run's folder holds for the sentinel, and what the sentinel has said."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_origin

from ...config.files import read_lines
from ..run_files import RunFiles
from ..stats import Rewards, finite, or_nan
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


def alarms(run_dir: Path, warn: Callable[[str], None] | None = None) -> list[Alarm]:
    """What the run's sentinel said, oldest first; of a step that was trained twice, once.

    A line that is no alarm is left out, of which `warn` is told. Raises OSError where they cannot
    be read.
    """
    said = read_lines(run_dir / ALARMS_FILE, _alarm, warn)
    found = {(alarm.step, alarm.sign): alarm for alarm in said}
    return sorted(found.values(), key=lambda alarm: alarm.step)


def _alarm(read: Any) -> Alarm:
    alarm = Alarm(**read)
    for one in fields(alarm):
        kind: Any = get_origin(one.type) or one.type
        if not isinstance(getattr(alarm, one.name), kind):
            raise TypeError(one.name)
    return alarm


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
        row.reward, row.advantage = or_nan(row.reward), or_nan(row.advantage)
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
        if task is not None and finite(reward) is not None:
            found.setdefault(task, []).append(reward)
    if lost := len(rows) - sum(map(len, found.values())):
        run.warn(
            f"eval/step_{step:06d}.parquet: {lost} of {len(rows)} samples have no task_id or no "
            "reward; left out"
        )
    return found
