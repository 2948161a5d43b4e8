"""The numbers of a whole run, step by step, and what the sentinel's detectors find in them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...config.compose import compose
from ...config.schema import NEAR_CAP, RunConfig, SentinelAction, Sign
from ..sentinel.detectors import CAPPED, DETECTORS, DRIFT, KL, NEGATIVE, Finding
from ..sentinel.facts import WATCHED, GiantTurn, StepFacts, Visit
from ..sentinel.files import Alarm
from ..sentinel.watch import Judge
from .scan import Scan
from .source import About

FRESH, OLD = 0.5, 2.0
"""Versions of age below which a turn is fresh, and from which it is old."""
_EDGE = 10
"""Most steps that the run's beginning and its end are measured over."""
_ROUNDING = 1e-6
"""|A| that a foreign run's mean over equal rewards may leave."""
_EQUALLY_LONG = 3
"""Longest turns of a foreign run that show its cap."""


@dataclass
class Measures:
    """What a run is judged by."""

    about: About
    scans: Sequence[Scan]
    """Steps rising."""
    alarms: list[Alarm] = field(default_factory=list)
    """What detectors found, oldest first."""
    open: set[str] = field(default_factory=set)
    """Signs that are still there at the end."""

    def __post_init__(self) -> None:
        self.series = {scan.step: numbers(scan, self.cap) for scan in self.scans}
        for step, found in self.series.items():
            known = self.about.metrics.get(step, {})
            found |= {
                name.partition("/")[2]: known[name]
                for name in ("trainer/grad_norm", "trainer/weight_zero_share")
                if name in known
            }
        self._judge()

    @cached_property
    def cap(self) -> float:
        """The per-turn cap, tokens; inf where it is unknown, and no turn is near it.

        Of a foreign run: the length of the longest turns, if some are equally long: without a cap
        that is no chance.
        """
        if self.about.config is not None:
            return self.about.config.rollout.max_turn_tokens
        lengths = [int(length) for scan in self.scans for length in scan.length]
        longest = max(lengths, default=0)
        return longest if lengths.count(longest) >= _EQUALLY_LONG else math.inf

    @cached_property
    def config(self) -> RunConfig:
        """The run's, whose sentinel looks for every sign; of a foreign run the reference's."""
        config = self.about.config or compose([])
        sentinel = replace(config.sentinel, action=SentinelAction.note, actions={})
        return replace(config, sentinel=sentinel)

    @property
    def steps(self) -> list[int]:
        """Steps that could be read."""
        return [scan.step for scan in self.scans]

    @property
    def edge(self) -> int:
        """Steps that the beginning and the end are measured over: a third of the run at most."""
        return max(1, min(_EDGE, len(self.scans) // 3))

    def early(self, name: str) -> float | None:
        """Median of a number over the run's first steps; None where it is not known."""
        return self._median(name, self.steps[: self.edge])

    def late(self, name: str) -> float | None:
        """The same over its last steps."""
        return self._median(name, self.steps[-self.edge :])

    def values(self, name: str) -> dict[int, float]:
        """Step -> a number, where it is known."""
        return {step: found[name] for step, found in self.series.items() if name in found}

    @property
    def scored(self) -> list[int]:
        """Steps with log-probs of both sides."""
        return list(self.values("drift"))

    @property
    def evaluated(self) -> bool:
        """Whether there are two evaluations to compare."""
        return sum(map(bool, self.about.evals.values())) > 1

    def sign(self, sign: Sign) -> Alarm | None:
        """The alarm of a sign that is open at the end; None without one.

        Its sentence is on the end too, or says which step it is on where nothing is found there.
        """
        if sign.name not in self.open:
            return None
        alarm = next(one for one in reversed(self.alarms) if one.sign == sign.name)
        now = self.now(sign)
        told = f"at step {alarm.step}: {alarm.sentence}" if now is None else now.sentence
        return replace(alarm, sentence=told)

    def now(self, sign: Sign) -> Finding | None:
        """What the detector of a sign finds at the last step, with every evaluation known."""
        if not self.scans:
            return None
        return DETECTORS[sign](self._history, self.config.sentinel)

    def _median(self, name: str, steps: Sequence[int]) -> float | None:
        found = [self.series[step][name] for step in steps if name in self.series[step]]
        return float(np.median(found)) if found else None

    def _judge(self) -> None:
        judge = Judge(self.config)
        evals = self.about.evals
        for scan in self.scans:
            judge.history.evals |= {at: evals[at] for at in evals if at < scan.step}
            self.alarms += judge.add(self._facts(scan))
        self.open = {sign.name for sign in judge.open}
        judge.history.evals |= evals
        self._history = judge.history
        # These two are exact: what the end does not show is over.
        for sign in (Sign.held_out_churn, Sign.silent):
            found = self.now(sign)
            if found is None:
                self.open.discard(sign.name)
            elif sign.name not in self.open:  # of an evaluation after the last step
                self.alarms.append(Alarm(max(evals), sign.name, "note", **vars(found)))
                self.open.add(sign.name)

    def _facts(self, scan: Scan) -> StepFacts:
        """As the sentinel keeps them; the trainer's own metrics where they are known."""
        found = self.series[scan.step]
        made = {
            KL: "kl",
            DRIFT: "drift",
            CAPPED + "abs_mean": "drift_giant",
            CAPPED + "token_share": "share_giant",
            NEGATIVE + "abs_mean": "drift_negative_truncated",
            NEGATIVE + "token_share": "share_negative_truncated",
            "trainer/mismatch/zero_share": "zero",
            "trainer/entropy": "entropy",
            "rollout/reward_mean": "reward",
            "rollout/truncated_share": "truncated",
            "rollout/sample_tokens_mean": "tokens",
            "rollout/zero_signal_share": "silent",
        }
        known = self.about.metrics.get(scan.step, {})
        metrics = {name: found[mine] for name, mine in made.items() if mine in found}
        metrics |= {name: known[name] for name in WATCHED if name in known}
        return StepFacts(scan.step, metrics, visits(scan, self.cap), giants(scan, self.cap))


def numbers(scan: Scan, cap: float) -> dict[str, float]:
    """Name -> number of one step, as docs/forensics.md tells; what is not known is not there."""
    lengths = scan.length.astype(np.float64)
    total = float(lengths.sum())
    pushed = scan.advantages[scan.sample]
    giant = scan.length >= NEAR_CAP * cap
    found: dict[str, float] = {"tokens": float(np.mean(scan.sizes)), "generated": total}
    found["giant_turns"] = float(giant.sum())
    if np.isfinite(scan.rewards).any():
        found["reward"] = float(np.nanmean(scan.rewards))
        if scan.groups is not None:
            found["silent"] = _silent(scan.groups, scan.rewards, scan.advantages)
    if scan.truncated is not None:
        found["truncated"] = float(scan.truncated.mean())
    if total and "entropy" in scan.sums:
        found["entropy"] = scan.total("entropy") / total
    if scan.age is not None and total:
        found["age"] = float((scan.age * lengths).sum() / total)
    compared = scan.total("compared")
    if scan.scored and total:
        found["uncompared"] = 1 - compared / total
    if not scan.scored or not compared:
        return found
    count = scan.sums["compared"]
    of_sample = np.bincount(scan.sample, scan.sums["kl"], len(scan.sizes))
    tokens = np.bincount(scan.sample, count, len(scan.sizes))
    found["kl"] = float((of_sample[tokens > 0] / tokens[tokens > 0]).mean())
    found |= {"drift": scan.total("drift") / compared, "signed": scan.total("signed") / compared}
    found |= {name: scan.total(name) / compared for name in ("zero", "over_1")}
    parts = {"giant": giant, "negative": pushed < 0}
    if scan.truncated is not None:
        parts["negative_truncated"] = (pushed < 0) & scan.truncated[scan.sample]
    if scan.age is not None:
        parts |= {"fresh": scan.age < FRESH, "old": scan.age >= OLD}
    for name, members in parts.items():
        if here := float(count[members].sum()):
            found[f"drift_{name}"] = float(scan.sums["drift"][members].sum()) / here
            found[f"share_{name}"] = here / compared
    if "drift_fresh" in found and not scan.aged_from_newest:
        fresh = scan.age < FRESH if scan.age is not None else giant
        found["kl_fresh"] = float(scan.sums["kl"][fresh].sum() / count[fresh].sum())
    return found


def visits(scan: Scan, cap: float) -> dict[str, Visit]:
    """Task -> its groups in this step, as the sentinel keeps them."""
    tasks = np.array(scan.tasks)
    drift = scan.sums.get("drift", np.zeros(len(scan.length)))
    found = {}
    for task in dict.fromkeys(scan.tasks):
        samples = np.flatnonzero(tasks == task)
        turns = np.isin(scan.sample, samples)
        lengths = scan.length[turns]
        total = max(1, int(lengths.sum()))
        pushed = np.nan_to_num(scan.advantages[scan.sample[turns]])
        found[task] = Visit(
            rewards=np.nan_to_num(scan.rewards[samples]).tolist(),
            tokens=int(lengths.sum()),
            pull=float((lengths * pushed).sum() / total),
            drift=float(drift[turns].sum() / total),
            truncated=0 if scan.truncated is None else int(scan.truncated[samples].sum()),
            giant_turns=int((lengths >= NEAR_CAP * cap).sum()),
        )
    return found


def giants(scan: Scan, cap: float) -> list[GiantTurn]:
    """The turns near the cap, as the sentinel keeps them."""
    drift = scan.sums.get("drift", np.zeros(len(scan.length)))
    return [
        GiantTurn(
            scan.sample_ids[scan.sample[one.turn]],
            scan.tasks[scan.sample[one.turn]],
            int(scan.number[one.turn]),
            int(scan.length[one.turn]),
            float(np.nan_to_num(scan.advantages[scan.sample[one.turn]])),
            float(drift[one.turn] / scan.length[one.turn]),
            one.sketch,
        )
        for one in scan.long
        if scan.length[one.turn] >= NEAR_CAP * cap
    ]


def _silent(
    groups: Sequence[str], rewards: NDArray[np.floating], advantages: NDArray[np.floating]
) -> float:
    """Share of groups without signal: A = 0 on all their samples, or one reward where A is unknown.

    All arguments have an entry a sample.
    """
    names = np.array(groups)
    silent = []
    for name in dict.fromkeys(groups):
        pushed = advantages[names == name]
        known = bool(np.isfinite(pushed).all())
        silent.append(
            np.abs(pushed).max() <= _ROUNDING if known else len(set(rewards[names == name])) == 1
        )
    return float(np.mean(silent))


def by_age(scans: Sequence[Scan]) -> dict[int, tuple[float, int]]:
    """Versions of age -> mean |D| and number of tokens, over all steps given."""
    found: dict[int, list[float]] = {}
    for scan in scans:
        if scan.age is None or not scan.scored:
            continue
        ages: NDArray[np.int64] = np.maximum(scan.age, 0).astype(np.int64)
        for age in np.unique(ages):
            sums = found.setdefault(int(age), [0.0, 0.0])
            sums[0] += float(scan.sums["drift"][ages == age].sum())
            sums[1] += float(scan.sums["compared"][ages == age].sum())
    return {age: (d / max(n, 1), int(n)) for age, (d, n) in sorted(found.items())}


def by_task(scans: Sequence[Scan]) -> dict[str, float]:
    """Task -> mean |D| of its tokens, over all steps given."""
    found: dict[str, list[float]] = {}
    for scan in scans:
        for task, visit in visits(scan, 1).items() if scan.scored else ():
            sums = found.setdefault(task, [0.0, 0.0])
            sums[0] += visit.drift * visit.tokens
            sums[1] += visit.tokens
    return {task: d / max(n, 1) for task, (d, n) in found.items()}
