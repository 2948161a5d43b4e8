"""The verdict on a run: the mechanism that fits best, how sure that is, and what would test it."""

import math
from dataclasses import dataclass, field

from ...config.compose import compose
from ...config.errors import UserError
from ...config.paths import command
from ...config.schema import EngineDType, RunConfig, Sign
from ...config.words import counted
from ..diff.experiments import spell
from ..diff.sides import plain_knobs
from ..sentinel.growth import LEAST_WINDOW
from .evidence import Account, Finding, Mechanism, confidence
from .examine import Examination
from .mechanisms import MECHANISMS, harmless

_ENOUGH = 30
"""Steps from which a healthy run is very likely so."""
_UNCOMPARED = 0.001
"""Share of the tokens at the end without a finite D: above it the drift may be in these."""


@dataclass(frozen=True)
class Experiment:
    """The smallest run that would test the verdict."""

    command: str
    predicts: str


@dataclass
class Verdict:
    """What is said first."""

    name: str
    """Of a mechanism; healthy or undetermined."""
    sentence: str
    confidence: str
    score: float
    """In [0, 1]."""
    account: Account
    findings: list[Finding]
    """Every mechanism, the best score first."""
    against: list[str] = field(default_factory=list)
    """What speaks against it, or is missing for it."""
    remedy: str = ""
    experiment: Experiment | None = None
    unknown: list[str] = field(default_factory=list)
    """What this run cannot tell; a sentence each."""
    healthy: bool = False


def verdict(found: Examination) -> Verdict:
    """Judges every mechanism and names the one with the best score; a benign one where it is the
    only one, and the run is healthy but for it."""
    findings = [Finding(one, *one.judge(found)) for one in MECHANISMS]
    findings.sort(key=lambda one: (not one.told, one.mechanism.benign, -one.score))
    unknown, doubt = _unknown(found), _doubt(found)
    best = findings[0]
    benign = best.mechanism.benign
    if best.told and len(found.measures.scans) > 1 and not (benign and doubt):
        against = [one.sentence for one in best.evidence if one.holds is False]
        against += [f"not known: {one.sentence}" for one in best.evidence if one.holds is None]
        against += [
            f"{one.mechanism.title} fits too ({one.score:.2f})" for one in findings[1:] if one.told
        ]
        return Verdict(
            best.mechanism.name,
            f"{'Healthy, but' if benign else 'Not healthy:'} {best.mechanism.title}",
            best.confidence,
            best.score,
            best.account,
            findings,
            against,
            best.mechanism.remedy,
            _experiment(found, best),
            unknown,
            benign,
        )
    return _without(found, findings, unknown, doubt)


def _doubt(found: Examination) -> str:
    """Why no run like this can be called healthy, whichever mechanism is found; "" if it can."""
    numbers = found.measures
    count, scored = len(numbers.scans), len(numbers.scored)
    least = numbers.config.sentinel.min_steps + LEAST_WINDOW
    if not count:
        return "Nothing can be said: no step could be read"
    if count < least:
        return f"Undetermined: it has {count} of the {least} steps that are needed"
    if not scored:
        return "Undetermined: without log-probs of both sides no mismatch is known"
    if scored < least:
        return (
            f"Undetermined: it has {scored} of the {least} steps with log-probs of both sides "
            "that are needed"
        )
    last = numbers.steps[-numbers.edge :]
    for what, name in (("log-probs of both sides", "drift"), ("rewards", "reward")):
        missing = sum(name not in numbers.series[step] for step in last)
        if 2 * missing > len(last):
            where = f"{missing} of the last {len(last)} steps"
            return f"Undetermined: {what} are missing or not finite in {where}"
    if (share := numbers.late("uncompared") or 0.0) > _UNCOMPARED:
        return (
            f"Undetermined: log-probs of {share:.1%} of the tokens at the end are missing or not "
            "finite"
        )
    if signs := sorted(numbers.open - harmless(found)):
        return f"Undetermined: {', '.join(signs)} found, and no mechanism explains it"
    return ""


def _without(
    found: Examination, findings: list[Finding], unknown: list[str], doubt: str
) -> Verdict:
    """The verdict where no mechanism is named."""
    numbers = found.measures
    name, sentence, sure, score = "undetermined", doubt, "", 0.0
    if not doubt:
        name, sentence = "healthy", "Healthy: no mechanism is found and no sign is open"
        if learns := sorted(numbers.open - {Sign.visits.name}):
            sentence += f" but {' and '.join(learns)}, as where reward rises"
        known = (len(numbers.scored) >= _ENOUGH, numbers.evaluated, bool(found.about.metrics))
        score = 0.65 + 0.25 * sum(known) / len(known)
        sure = confidence(score)
    against = [
        f"{one.sign} was found at step {one.step}: {one.sentence}"
        for one in numbers.alarms
        if one.sign != Sign.visits.name
    ]
    against += [
        f"{one.mechanism.title} fits ({one.score:.2f})"
        for one in findings
        if one.told and one.mechanism.benign
    ]
    return Verdict(
        name, sentence, sure, score, Account(), findings, against, unknown=unknown,
        healthy=not doubt,
    )  # fmt: skip


def _experiment(found: Examination, best: Finding) -> Experiment | None:
    config = found.about.config
    if config is None:
        return None
    since = best.account.since
    last = (max(found.measures.steps) if since is None else since) + best.mechanism.after
    last = max(last, best.account.until)
    words = override(config, best.mechanism, last)
    if words is None:
        return None
    return Experiment(command("train", *words), best.mechanism.predicts)


def override(config: RunConfig, mechanism: Mechanism, last: int) -> list[str] | None:
    """Overrides that test a mechanism on a run's config in `last` steps, proven by composing them;
    None where the config does not compose in this checkout, or no test leads on from it.
    """
    coarseness = list(EngineDType).index
    base = spell(plain_knobs(config))
    if base is None:
        return None
    same = plain_knobs(compose([*base, f"steps={last}"]))
    for test in mechanism.tests:
        scaled = {"third": config.optim.lr / 3, "twice": 2 * config.rollout.samples_per_prompt}
        changes = [word.format(**scaled) for word in test]
        words = [*base, *changes, f"steps={last}"]
        words = list({word.partition("=")[0]: word for word in words}.values())
        try:
            changed = compose(words)
        except UserError:
            continue
        if changed.data.suite != config.data.suite:
            continue
        if coarseness(changed.engine.dtype) > coarseness(config.engine.dtype):
            continue
        if plain_knobs(changed) != same:
            return words
    return None


def _unknown(found: Examination) -> list[str]:
    """What is missing in this run, and what can't be told because of it."""
    numbers = found.measures
    scans = numbers.scans
    if not scans:
        return []
    missing = []
    if len(scans) == 1:
        missing.append("There is one step alone: nothing is known of how anything changes.")
    unscored = [scan.step for scan in scans if not scan.scored]
    if unscored:
        which = "every step" if len(unscored) == len(scans) else f"{len(unscored)} steps"
        missing.append(
            f"Log-probs of trainer or engine are missing in {which}: no |D|, no mismatch there."
        )
    bare = {step: part for step, part in numbers.values("uncompared").items() if part}
    if bare:
        missing.append(
            f"Log-probs of up to {max(bare.values()):.1%} of the tokens of a step are missing or "
            f"not finite, in {counted(len(bare), 'step')}: their |D| is in no number."
        )
    unrewarded = len(scans) - len(numbers.values("reward"))
    if unrewarded:
        which = "every step" if unrewarded == len(scans) else counted(unrewarded, "step")
        missing.append(
            f"Rewards are missing in {which}: what is learned or lost there cannot be told."
        )
    if all(scan.age is None for scan in scans):
        missing.append("Weight versions are missing: staleness cannot be told from numerics.")
    if all("entropy" not in found for found in numbers.series.values()):
        missing.append("Entropy is missing: a collapse of it cannot be told.")
    if not numbers.evaluated:
        missing.append("There are fewer than two evaluations: overfitting cannot be told.")
    if math.isinf(numbers.cap):
        missing.append("The per-turn cap is unknown: which turns are near it cannot be told.")
    if not any("grad_norm" in found for found in numbers.series.values()):
        missing.append("The trainer's metrics are missing: an update of 0 cannot be told.")
    if all(scan.truncated is None for scan in scans):
        missing.append("Whether a sample is truncated is missing.")
    return missing
