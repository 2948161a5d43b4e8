"""What makes a run unhealthy: one function a sign, each read at the last step of a history.

docs/sentinel.md has the table of them, with where their limits come from.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from statistics import mean, median
from typing import Any

import numpy as np

from ...config.schema import SentinelConfig, Sign
from ...config.words import counted
from ..stats import mean_reward, paired_change, sign_test
from .growth import growth
from .history import History, visits_per_task

KL = "trainer/train_rollout_kl"
DRIFT = "trainer/mismatch/abs_mean"
CAPPED = "trainer/mismatch/turn_near_cap/"
NEGATIVE = "trainer/mismatch/advantage_negative_truncated/"
GRADIENT = "trainer/grad_norm"
REWARD = "rollout/reward_mean"
ZERO_SIGNAL = "rollout/zero_signal_share"

_BURST_STEPS = 6
_STREAK = 3
_SIGNIFICANT = 0.05
_HEALTHY_DRIFT = 0.12
"""Most mean |log p_trainer - log p_rollout| of giant turns in the published healthy run."""
_GROWN = 1.5
AGREED = 0.9
"""Share of groups without signal from which steps train on next to nothing."""
_COLLAPSE = 4.0
"""By how much entropy must fall: a run that learns well loses half of it early on."""
_LEAST_ENTROPY = 1e-6
"""Nats: what an entropy of 0 counts as."""


@dataclass(frozen=True)
class Finding:
    """What a detector saw."""

    sentence: str
    """With its evidence."""
    tasks: list[str] = field(default_factory=list)
    """Tasks it is about, where it is about some."""
    evidence: dict[str, Any] = field(default_factory=dict)
    """The numbers of the sentence, by name."""


Detector = Callable[[History, SentinelConfig], Finding | None]


def mismatch_growth(history: History, config: SentinelConfig) -> Finding | None:
    """The mismatch between trainer and engine grows exponentially."""
    for name in (KL, DRIFT):
        found = growth(history.series(name), config.min_steps)
        if found is not None:
            return Finding(
                f"{name} grows exponentially since step {found.since}: {found}.",
                evidence={"metric": name, **vars(found)},
            )
    return None


def capped_burst(history: History, config: SentinelConfig) -> Finding | None:
    """Giant turns drift, whether or not the overall mismatch shows it."""
    last = history.steps[-1].step
    series = history.series(CAPPED + "abs_mean")
    recent = [value for step, value in series.items() if step > last - 2 * _BURST_STEPS]
    recent = recent[-_BURST_STEPS:]
    if last not in series or len(recent) < _BURST_STEPS // 2 or mean(recent) < config.capped_drift:
        return None
    level, earlier = mean(recent), list(series.values())[: -len(recent)]
    above = list(takewhile(lambda step: series[step] >= config.capped_drift, reversed(series)))
    rise = len(earlier) >= _BURST_STEPS and level >= 2 * median(earlier)
    if not rise and (len(above) < _BURST_STEPS or len(series) - len(above) >= _BURST_STEPS):
        return None
    drift = "mean |log p_trainer - log p_rollout|"
    said = (
        f"Turns near the cap drift: {drift} is {level:.2f} on them over {len(recent)} steps, above "
        f"{config.capped_drift:g}"
        if rise
        else f"Turns near the cap have drifted since step {above[-1]}, too early to tell what is "
        f"usual: {drift} has been above {config.capped_drift:g} on them in each of {len(above)} "
        f"steps, and {level:.2f} over the last {len(recent)}"
    )
    overall = history.series(DRIFT)[last]
    share = history.series(CAPPED + "token_share")[last]
    return Finding(
        f"{said}; they hold {share:.1%} of the tokens, and the mean over all is {overall:.3f}.",
        _tasks_with_giants(history),
        {"capped": level, "overall": overall, "token_share": share},
    )


def negative_truncated(history: History, config: SentinelConfig) -> Finding | None:
    """Drift is concentrated in tokens of truncated samples that are pushed down, and grows."""
    series, overall = history.series(NEGATIVE + "abs_mean"), history.series(DRIFT)
    shares = history.series(NEGATIVE + "token_share")
    last = history.steps[-1].step
    recent = [step for step in series if step > last - 2 * _STREAK][-_STREAK:]
    earlier = list(series.values())[: -len(recent)]
    if last not in series or len(recent) < _STREAK or len(earlier) < config.min_steps // 2:
        return None
    if not all(overall.get(s) for s in recent):
        return None
    carried = mean(series[s] * shares[s] / overall[s] for s in recent)
    share = mean(shares[s] for s in recent)
    level, usual = mean(series[s] for s in recent), median(earlier)
    if carried < 0.5 or carried < 2 * share or level < max(2 * usual, _HEALTHY_DRIFT):
        return None
    return Finding(
        f"{carried:.0%} of all drift lies in truncated samples with A < 0, which hold {share:.0%} "
        f"of the tokens; their mean |log p_trainer - log p_rollout| rose from {usual:.3g} to "
        f"{level:.3g}.",
        sorted({g.task for g in history.steps[-1].giants if g.advantage < 0}),
        {"drift_share": carried, "token_share": share, "level": level, "usual": usual},
    )


def sign_persistent(history: History, config: SentinelConfig) -> Finding | None:
    """Tasks whose giant turns are pushed down visit after visit."""
    streaks = {}
    for task, visits in history.visits.items():
        streak = 0
        for _, visit in reversed(visits):
            if visit.pull >= 0 or not visit.giant_turns:
                break
            streak += 1
        if streak >= config.persistence and visits[-1][0] == history.steps[-1].step:
            streaks[task] = streak
    if not streaks:
        return None
    tasks = sorted(streaks, key=lambda task: (-streaks[task], task))
    return Finding(
        f"{_listed(tasks)}: turns near the cap and a negative mean advantage of their tokens on "
        f"each of the last {min(streaks.values())} visits.",
        tasks,
        {"visits": streaks},
    )


def repetition(history: History, config: SentinelConfig) -> Finding | None:
    """Near-identical giant turns come again step after step, are pushed down, and drift."""
    last = history.steps[-1].step
    found = [
        family
        for family in history.current
        if len(family.steps) >= config.repeats
        and family.advantage < 0
        and family.drift(last) > _HEALTHY_DRIFT
        and (len(family.steps) == 1 or family.drift(last) > _GROWN * family.drift(family.steps[0]))
    ]
    if not found:
        return None
    worst = max(found, key=lambda family: (len(family.steps), len(family.members)))
    first = worst.steps[0]
    others = f" (and {len(found) - 1} more such families)" if len(found) > 1 else ""
    return Finding(
        f"Near-identical giant turns of {_listed(worst.tasks)} in {len(worst.steps)} steps since "
        f"step {first}: {len(worst.members)} turns, mean advantage {worst.advantage:+.2f}, drift "
        f"{worst.drift(first):.3g} then, {worst.drift(last):.3g} now{others}.",
        sorted({task for family in found for task in family.tasks}),
        {
            "steps": list(worst.steps),
            "turns": len(worst.members),
            "advantage": worst.advantage,
            "drift": [worst.drift(step) for step in worst.steps],
            "families": len(found),
        },
    )


def visits(history: History, config: SentinelConfig) -> Finding | None:
    """Each task has been trained often: where divergence was seen, this told its onset best."""
    count = visits_per_task(history.visits)
    if count < config.visits:
        return None
    return Finding(
        f"A task has been trained {count:.0f} times, mean over "
        f"{counted(len(history.visits), 'task')}; from here on, look at turns near the cap and at "
        "held-out reward first.",
        evidence={"visits": count},
    )


def entropy(history: History, config: SentinelConfig) -> Finding | None:
    """The policy's entropy blows up or collapses."""
    series = history.series("trainer/entropy")
    inverse = {step: 1 / max(value, _LEAST_ENTROPY) for step, value in series.items()}
    if (up := growth(series, config.min_steps)) is not None:
        return Finding(f"Entropy rises since step {up.since}: {up}.", evidence=vars(up))
    if (down := growth(inverse, config.min_steps, _COLLAPSE)) is not None:
        return Finding(
            f"Entropy collapses since step {down.since}: from {1 / down.baseline:.3g} to "
            f"{1 / down.level:.3g} nats a token, halving every {down.doubling:.1f} steps.",
            evidence=vars(down),
        )
    return None


def length(history: History, config: SentinelConfig) -> Finding | None:
    """Episodes run into their limits, or grow without end."""
    cut = list(history.series("rollout/truncated_share").values())
    if len(cut) >= config.min_steps + _STREAK:
        now, usual = mean(cut[-_STREAK:]), median(cut[: config.min_steps])
        if now > config.truncated_share and now > 2 * usual:
            return Finding(
                f"{now:.0%} of the samples of the last {_STREAK} steps are truncated; in the first "
                f"{config.min_steps} it was usually {usual:.0%}.",
                evidence={"now": now, "usual": usual},
            )
    found = growth(history.series("rollout/sample_tokens_mean"), config.min_steps)
    if found is None:
        return None
    return Finding(f"Samples grow longer since step {found.since}: {found}.", evidence=vars(found))


def reward_collapse(history: History, config: SentinelConfig) -> Finding | None:
    """What the policy had learned is lost on the training tasks."""
    series, count = history.series(REWARD), config.min_steps
    found = reward_lost(series, count)
    if found is None:
        return None
    since, usual = found
    now = mean(list(series.values())[-_BURST_STEPS:])
    return Finding(
        f"Training reward has been lost since step {since}: it was {usual:.2f} over {count} "
        f"steps, and is {now:.2f} over the last {_BURST_STEPS}.",
        evidence={"since": since, "usual": usual, "now": now},
    )


def reward_lost(series: dict[int, float], count: int) -> tuple[int, float] | None:
    """Since which step training reward is lost at the end of a series, and what it was.

    It was the best mean over `count` steps in a row; it is lost where each of the last steps, at
    least six, is below half of that and below each of these steps.
    """
    rewards = np.array(list(series.values()))
    before = rewards[:-_BURST_STEPS]
    if len(before) < count:
        return None
    at = int(np.convolve(before, np.ones(count), "valid").argmax())
    best = before[at : at + count]
    usual = float(best.mean())
    least = min(float(best.min()), usual / 2)
    lost = list(takewhile(lambda step: series[step] < least, reversed(series)))
    return (lost[-1], usual) if len(lost) >= _BURST_STEPS else None


def zero_signal(history: History, config: SentinelConfig) -> Finding | None:
    """Steps train on next to nothing: all samples of a group have one reward."""
    series = history.series(ZERO_SIGNAL)
    recent = list(takewhile(lambda step: series[step] >= AGREED, reversed(series)))[::-1]
    if len(recent) < _STREAK:
        return None
    shares = [series[step] for step in recent]
    groups = "all groups" if min(shares) == 1 else f"at least {min(shares):.0%} of the groups"
    return Finding(
        f"In each of the last {len(recent)} steps {groups} carry no signal: their samples all have "
        "one reward.",
        evidence={"share": shares, "since": recent[0]},
    )


def silent(history: History, config: SentinelConfig) -> Finding | None:
    """Nothing is trained, or nothing is measured, and the curves look calm."""
    for name, value, sentence in (
        ("trainer/update_norm", 0.0, "The weights have not moved for {n} steps."),
        (GRADIENT, 0.0, "The gradient has been exactly 0 for {n} steps: only the optimizer's "
         "momentum and weight decay move the weights."),
        ("trainer/weight_zero_share", 1.0, "The correction or a mask has dropped every token for "
         "{n} steps: nothing is trained."),
        ("trainer/mismatch/zero_share", 1.0, "Trainer and engine have agreed on every token to "
         "the last bit for {n} steps: the mismatch compares a thing with itself."),
    ):  # fmt: skip
        recent = history.streak(name, value)
        told = name == GRADIENT and len(history.streak(ZERO_SIGNAL, 1.0)) >= len(recent)
        if len(recent) >= _STREAK and not told:  # by zero_signal
            return Finding(
                sentence.format(n=len(recent)),
                evidence={"metric": name, "since": recent[0].step},
            )
    return None


def held_out_churn(history: History, config: SentinelConfig) -> Finding | None:
    """Held-out tasks are lost, whatever the mismatch says."""
    known = [step for step, rewards in history.evals.items() if rewards]
    if len(known) < 2:
        return None
    last = max(known)
    earlier = [step for step in known if step != last]
    best = max(earlier, key=lambda step: _reward(history, step))
    change = paired_change(history.evals[best], history.evals[last])
    if change is None or change.down <= change.up:
        return None
    # The best of several is high by chance too: Bonferroni over those it was chosen from.
    p = min(1.0, sign_test(change.up, change.down) * len(earlier))
    if p >= _SIGNIFICANT:
        return None
    return Finding(
        f"Held-out reward fell from {_reward(history, best):.3f} after {best} steps to "
        f"{_reward(history, last):.3f} after {last}: {change.down} tasks down, {change.up} up "
        f"(sign test, corrected for the choice of the best: p = {p:.3f}).",
        evidence={"best": best, "last": last, "down": change.down, "up": change.up, "p": p},
    )


DETECTORS: dict[Sign, Detector] = {
    Sign[one.__name__]: one
    for one in (
        mismatch_growth,
        capped_burst,
        negative_truncated,
        sign_persistent,
        repetition,
        visits,
        entropy,
        length,
        reward_collapse,
        zero_signal,
        silent,
        held_out_churn,
    )
}
"""Name -> detector, in the order in which they are told."""


def _reward(history: History, step: int) -> float:
    return mean_reward(history.evals[step])


def _tasks_with_giants(history: History) -> list[str]:
    return sorted({giant.task for giant in history.steps[-1].giants})


def _listed(tasks: list[str]) -> str:
    """a, b, c and 4 more."""
    if len(tasks) <= 3:
        return ", ".join(tasks)
    return f"{', '.join(tasks[:3])} and {len(tasks) - 3} more"
