"""What a run's files say, gathered for the report and the summary."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from .charts import Cell, Points, numbers
from .run_files import Row, RunFiles
from .sentinel.files import rewards_at
from .stats import Change, Interval, Rewards, finite_mean, mean_interval, paired_change

_COLUMNS = ("sample_id", "task_id", "end_reason", "reward", "truncated", "step")

_SHARED_OUT = {
    "generate": "rollout/generate_share",
    "sandbox": "rollout/sandbox_share",
    "verify": "rollout/verify_share",
}
"""Activity of the driver -> its share of the samples' time."""
_TRAINER = {"train": "time/train_compute", "sync": "time/train_push"}
"""Activity of the trainer -> its seconds."""


@dataclass
class Facts:
    """Everything is empty, never wrong, where the run has nothing to say yet."""

    train_reward: dict[int, float] = field(default_factory=dict)
    """Step -> mean verdict of its batch."""
    truncated: dict[int, float] = field(default_factory=dict)
    """Step -> share of its samples cut by a token limit."""
    ends: dict[str, dict[int, float]] = field(default_factory=dict)
    """End reason -> step -> share of the batch; the most frequent reason first."""
    end_counts: Counter[str] = field(default_factory=Counter)
    """End reason -> samples, over all training batches."""
    lost: Counter[str] = field(default_factory=Counter)
    """replaced/REASON and dropped/FILTER -> how often; wasted/CAUSE -> tokens; over all steps."""
    visits: dict[str, dict[int, Cell]] = field(default_factory=dict)
    """Task -> step -> its visit; the best mean reward first."""
    evals: dict[int, Rewards] = field(default_factory=dict)
    """Steps trained -> held-out task -> rewards."""
    examples: dict[str, tuple[str, int, str]] = field(default_factory=dict)
    """End reason -> (kind, step, sample id) of its newest sample."""
    times: dict[str, Points] = field(default_factory=dict)
    """Activity -> step -> seconds."""

    @property
    def steps(self) -> list[int]:
        """Steps that have a batch."""
        return sorted(self.truncated)

    def held_out(self, step: int) -> Interval | None:
        """Held-out reward after `step` steps."""
        return mean_interval(self.evals.get(step, {}))

    @property
    def held_out_change(self) -> tuple[int, int, Change] | None:
        """First evaluation, last one, and the paired change; None with fewer than two."""
        if len(self.evals) < 2:
            return None
        first, last = min(self.evals), max(self.evals)
        change = paired_change(self.evals[first], self.evals[last])
        return None if change is None else (first, last, change)


def gather(run: RunFiles) -> Facts:
    """Reads the scalar columns of every step file; damaged ones are named in run.warnings."""
    facts = Facts()
    ends: dict[str, dict[int, float]] = defaultdict(dict)
    visits: dict[str, dict[int, Cell]] = defaultdict(dict)
    for step in run.steps("rollouts"):
        rows = run.rows("rollouts", step, _COLUMNS)
        if not rows:
            continue
        if (reward := finite_mean(row["reward"] for row in rows)) is not None:
            facts.train_reward[step] = reward
        facts.truncated[step] = _mean([row["truncated"] for row in rows])
        counts = Counter(row["end_reason"] for row in rows)
        facts.end_counts.update(counts)
        for reason, count in counts.items():
            ends[reason][step] = count / len(rows)
        for task, found in _by_task(rows).items():
            if (cell := _cell(task, step, found)) is not None:
                visits[task][step] = cell
        for row in rows:
            facts.examples[row["end_reason"]] = ("rollouts", step, row["sample_id"])
        for name, value in numbers(run.stats("rollouts", step)).items():
            if name.startswith(("replaced/", "dropped/", "wasted/")):
                facts.lost[name] += int(value)
    for step in run.steps("eval"):
        rows = run.rows("eval", step, _COLUMNS)
        if rewards := rewards_at(run, step):
            facts.evals[step] = rewards
        for row in rows:
            facts.examples.setdefault(row["end_reason"], ("eval", step, row["sample_id"]))
    facts.ends = {reason: ends[reason] for reason, _ in facts.end_counts.most_common()}
    ranked = sorted(visits, key=lambda t: (-_mean([c.value for c in visits[t].values()]), t))
    facts.visits = {task: visits[task] for task in ranked}
    facts.times = _times(run, facts.steps)
    return facts


def window(run: RunFiles, facts: Facts) -> int:
    """Steps to average over: about one pass over the training tasks, and enough to smooth."""
    rollout = run.config.rollout
    draws = rollout.prompts_per_step // rollout.groups_per_draw
    return max(5, round(len(facts.visits) / draws))


def training_s(run: RunFiles) -> float:
    """Wall clock of the steps, their evaluations and checkpoints, seconds; without start-up and
    downtime."""
    steps, evals = run.series("time/train_step"), run.series("time/eval_s")
    # An evaluation before the last step lies within the next step's time.
    last = sum(seconds for step, seconds in evals.items() if step >= max(steps, default=0))
    return sum(steps.values()) + sum(run.series("time/train_checkpoint").values()) + last


def first_and_last(points: Points, count: int) -> tuple[str, str]:
    """The mean of the first and of the last `count` steps, and how it was taken, as text."""
    values = list(points.values())
    if not values:
        return "–", "no batch yet"
    if len(values) == 1:
        return f"{values[0]:.2f}", "one step"
    count = min(count, len(values) // 2)
    first, last = _mean(values[:count]), _mean(values[-count:])
    steps = "step" if count == 1 else f"{count} steps"
    return f"{first:.2f} → {last:.2f}", f"mean of the first and of the last {steps}"


def _by_task(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["task_id"], []).append(row)
    return found


def _cell(task: str, step: int, rows: Sequence[Row]) -> Cell | None:
    """None without a reward."""
    reward, cut = finite_mean(row["reward"] for row in rows), sum(row["truncated"] for row in rows)
    if reward is None:
        return None
    ends = Counter(row["end_reason"] for row in rows).most_common()
    text = (
        f"{task}, step {step}: reward {reward:.2f} over {len(rows)} samples"
        f"{f', {cut} truncated' if cut else ''} ({', '.join(f'{n} {end}' for end, n in ends)})"
    )
    return Cell(reward, cut / len(rows), text)


def _times(run: RunFiles, steps: Sequence[int]) -> dict[str, Points]:
    """Where each step's wall clock went: activity -> step -> seconds.

    Samples run side by side, so a batch's wall clock is shared out as its samples' own time was.
    The evaluation and the checkpoint of step N - 1 lie between its weights and the batch of step
    N, and belong to step N; a checkpoint is written while the next batch is generated, so it only
    makes the wall clock longer. Generation counts in the step in which it was done, and only as
    far as the trainer waited for it: the rest lies beside training. Idle is what is left.
    """

    def series(name: str) -> Points:
        return numbers(run.series(name))

    rollout, wall = series("time/rollout_s"), series("time/train_step")
    waits, evals = series("time/train_wait"), series("time/eval_s")
    checkpoints = series("time/train_checkpoint")
    shares = {activity: series(name) for activity, name in _SHARED_OUT.items()}
    trainer = {activity: series(name) for activity, name in _TRAINER.items()}
    lag = run.config.rollout.lag
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for step in steps:
        held_up = checkpoints.get(step - 1, 0.0)
        free = waits[step] + held_up if step in waits else math.inf
        spent = {"evaluate": min(free, evals.get(step - 1, 0.0))}
        # In turns, the batch `lag` steps ahead is made; before the first step, all up to it.
        made = [one for one in rollout if max(one - lag, 1) == step]
        seconds = sum(rollout.get(one, 0.0) for one in made)
        counted = min(1.0, (free - spent["evaluate"]) / seconds) if seconds > 0 else 0.0
        for activity, share in shares.items():
            own = sum(rollout.get(one, 0.0) * share.get(one, 0.0) for one in made)
            spent[activity] = own * counted
        spent |= {activity: points.get(step, 0.0) for activity, points in trainer.items()}
        if step in wall:
            spent["idle"] = max(0.0, wall[step] + held_up - sum(spent.values()))
        for activity, value in spent.items():
            if value > 0:
                found[activity][step] = value
    return dict(found)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
