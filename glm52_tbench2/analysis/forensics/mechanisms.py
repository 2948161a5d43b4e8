"""The mechanisms, each judged on pieces of evidence; docs/forensics.md explains their limits."""

from itertools import pairwise, takewhile
from statistics import median
from typing import Any

from ...config.schema import Sign
from ..sentinel.detectors import AGREED, KL
from ..sentinel.files import Alarm
from ..stats import mean_reward
from .evidence import Account, Evidence, Mechanism
from .examine import Examination
from .measures import Measures, by_age, by_task
from .profiles import Profile

_HEALTHY_KL = 0.054
"""train_rollout_kl of the published healthy run: at most."""
_GROWN = 2.0
_CLEAR = 1.3
"""Times the baseline's median: growth is told to start with the first step above."""
_FEW = 0.3
"""Share of all |D| that few families must hold, or must not."""
_RECENT = 10
"""A family that has no turn in so many last steps is over."""
_ROSE = 0.1
"""Training reward that has risen by so much: the run learns."""
_AHEAD = 40
"""Steps before reward is lost in which its cause is looked for."""
_DRIFTING = (Sign.capped_burst, Sign.negative_truncated, Sign.mismatch_growth)


def repeated_turns(found: Examination) -> tuple[list[Evidence], Account]:
    """The published mechanism."""
    numbers = found.measures
    repeats, limit = numbers.config.sentinel.repeats, numbers.config.sentinel.capped_drift
    recent = set(numbers.steps[-_RECENT:])
    families = [
        one for one in found.families if len(one.steps) >= repeats and one.steps[-1] in recent
    ]
    down = [one for one in families if one.advantage is not None and one.advantage < 0]
    unknown = bool(families) and all(one.advantage is None for one in families)
    named = down or (families if unknown else [])
    turns = sum(one.turns for one in named)
    share = _sum([one.late_drift_share for one in named])
    tokens = sum(one.late_token_share for one in named)
    worst = max(named, key=lambda one: one.late_drift_share or one.late_token_share, default=None)
    first, last = (worst.first_drift, worst.last_drift) if worst is not None else (None, None)
    grown = bool(first and last and last >= max(limit, _GROWN * first))
    cut = _mean([(one.near_cap_share, one.turns) for one in named])
    negative = _mean([(one.negative_share, one.pushed_tokens) for one in named])
    signs = [alarm for sign in _DRIFTING if (alarm := numbers.sign(sign)) is not None]
    evidence = [
        Evidence("recurring", 3, bool(named), (
            f"{len(named)} families of near-identical turns in {repeats} steps or more, "
            f"{turns} turns of {', '.join(_tasks(named)[:3])}"
            if named else f"no family of near-identical turns with A < 0 in {repeats} steps "
            f"goes on in the last {_RECENT}"
        ), needed=True),
        Evidence("drifting", 2, None if last is None and not signs else grown or bool(signs), (
            f"the sentinel's signs: {', '.join(one.sign for one in signs)}" if signs
            else "their |D| is unknown" if first is None or last is None or worst is None
            else f"mean |D| of {worst.name} went from {first:.3g} in its first third of steps to "
            f"{last:.3g} in its last; told from {limit:g} on, where it doubled"
        ), needed=True),
        Evidence("pushed down", 2, None if unknown else negative is not None and negative >= 0.7,
            "no such token is pushed, or A is unknown" if negative is None
            else f"{negative:.0%} of their tokens that are pushed are pushed down"),
        Evidence("concentrated", 2, None if share is None
            else share >= _FEW and share >= _GROWN * tokens,
            "the share of drift is unknown" if share is None
            else f"at the end they hold {share:.0%} of all |D| and {tokens:.0%} of the tokens"),
        Evidence("near the cap", 1, None if cut is None else cut >= 0.5,
            "the per-turn cap is unknown" if cut is None
            else f"{cut:.0%} of them are near the per-turn cap"),
    ]  # fmt: skip
    tokens_told = ""
    if worst is not None and worst.in_loop is not None and worst.outside is not None:
        tokens_told = (
            f"{worst.looped:.0%} of the tokens of {worst.name} are within loops; mean |D| "
            f"{worst.in_loop:.3g} there, {worst.outside:.3g} elsewhere in its turns"
        )
    since = None if worst is None else _onset(worst, signs)
    return evidence, Account(since, _tasks(named), _samples(named), tokens_told)


def staleness(found: Examination) -> tuple[list[Evidence], Account]:
    """Tokens of older weights differ, fresh ones do not."""
    numbers = found.measures
    old, fresh = numbers.late("drift_old"), numbers.late("drift_fresh")
    ages = by_age(numbers.scans[-numbers.edge :])
    before = numbers.early("drift_fresh")
    levels = [drift for drift, count in ages.values() if count > 100]
    rising = sum(a < b for a, b in pairwise(levels))
    ratio = old / fresh if old is not None and fresh else None
    evidence = [
        _mismatched(found),
        Evidence("old tokens", 3, None if ratio is None else ratio >= _GROWN,
            "ages are unknown, or all tokens are of one age" if ratio is None
            else f"at the end mean |D| is {old:.3g} on tokens two versions old or more, "
            f"{fresh:.3g} on fresh ones", needed=True),
        Evidence("rises with age", 2,
            None if len(levels) < 3 else rising >= 0.75 * (len(levels) - 1),
            "fewer than three ages" if len(levels) < 3
            else f"mean |D| by age: {', '.join(f'{one:.3g}' for one in levels)}"),
        Evidence("fresh tokens stay", 1, None if not fresh or not before
            else fresh <= 1.5 * before,
            "not known of fresh tokens" if not fresh or not before
            else f"mean |D| of fresh tokens went from {before:.3g} to {fresh:.3g}"),
        _spread(found),
    ]  # fmt: skip
    return evidence, _since_growth(found, "tokens of weights two versions old or more")


def engine(found: Examination) -> tuple[list[Evidence], Account]:
    """Trainer and engine disagree on tokens of the newest weights too."""
    numbers = found.measures
    fresh, old = numbers.late("drift_fresh"), numbers.late("drift_old")
    kl = numbers.late("kl_fresh")
    tasks = by_task(numbers.scans[-numbers.edge :])
    spread = max(tasks.values()) / max(min(tasks.values()), 1e-9) if len(tasks) > 1 else None
    alike = None if fresh is None or old is None else old <= 1.5 * fresh
    evidence = [
        _mismatched(found),
        Evidence("fresh tokens", 3, None if kl is None else kl > _HEALTHY_KL,
            "ages are unknown, or no token is fresh" if kl is None
            else f"at the end the KL of tokens of the newest weights is {kl:.3g}", needed=True),
        Evidence("age does not matter", 2, alike,
            "not known by age" if alike is None
            else f"mean |D| is {old:.3g} on old tokens, {fresh:.3g} on fresh ones"),
        Evidence("every task", 2, None if spread is None else spread < 3,
            "one task alone" if spread is None
            else f"the task with the most |D| a token has {spread:.1f} times that of the least"),
        _spread(found),
    ]  # fmt: skip
    return evidence, _since_growth(found, "all alike")


def churn(found: Examination) -> tuple[list[Evidence], Account]:
    """Held-out tasks are lost while the mismatch is calm."""
    numbers = found.measures
    alarm, rise = numbers.sign(Sign.held_out_churn), _rise(found)
    evidence = [
        _held_out_lost(found, 3, needed=True),
        _calm(found, 2),
        Evidence("training reward holds", 1, None if rise is None else rise >= -0.05,
            _rewards(found), needed=True),
    ]  # fmt: skip
    return evidence, _since_held_out(found) if alarm else Account()


def collapse(found: Examination) -> tuple[list[Evidence], Account]:
    """The policy becomes deterministic."""
    numbers = found.measures
    alarm = _collapsing(numbers)
    before, after = numbers.early("entropy"), numbers.late("entropy")
    was, silent = numbers.early("silent"), numbers.late("silent")
    cut = numbers.late("truncated")
    limit = numbers.config.sentinel.truncated_share
    evidence = [
        Evidence("entropy falls", 3, _known(alarm is not None, before is not None),
            "entropy is unknown" if before is None
            else alarm.sentence if alarm else "entropy does not collapse", needed=True),
        Evidence("entropy low", 2, None if not before or after is None else after <= before / 2,
            "entropy is unknown" if not before or after is None
            else f"entropy went from {before:.3g} to {after:.3g} nats a token"),
        Evidence("length calm", 1, None if cut is None else cut <= limit,
            "truncation is unknown" if cut is None else f"{cut:.0%} of samples are truncated"),
        Evidence("groups agree", 1, None if was is None or silent is None else silent > was + 0.1,
            "rewards are unknown" if was is None or silent is None
            else f"groups without signal went from {was:.0%} to {silent:.0%}"),
        Evidence("not learning", 2, None if (rise := _rise(found)) is None else rise < _ROSE,
            _rewards(found), needed=True),
    ]  # fmt: skip
    return evidence, Account(since=alarm.evidence.get("since") if alarm else None)


def length(found: Examination) -> tuple[list[Evidence], Account]:
    """Episodes grow into their limits, and not by repeating themselves."""
    numbers = found.measures
    alarm = numbers.sign(Sign.length)
    was, cut = numbers.early("truncated"), numbers.late("truncated")
    short, long = numbers.early("tokens"), numbers.late("tokens")
    share = sum(one.late_token_share for one in found.families)
    evidence = [
        Evidence("length", 3, alarm is not None,
            alarm.sentence if alarm else "samples do not grow without end", needed=True),
        Evidence("not repetition", 2, share < 0.1,
            f"near-identical turns hold {share:.0%} of the tokens at the end"),
        Evidence("truncation", 1,
            None if was is None or cut is None else cut > was and cut >= _GROWN * was,
            "truncation is unknown" if was is None or cut is None
            else f"truncated samples went from {was:.0%} to {cut:.0%}"),
        Evidence("longer", 1, None if not short or long is None else long >= 1.2 * short,
            "lengths are unknown" if not short or long is None
            else f"a sample's tokens went from {short:,.0f} to {long:,.0f}"),
    ]  # fmt: skip
    return evidence, Account(since=alarm.since if alarm else None)


def lost(found: Examination) -> tuple[list[Evidence], Account]:
    """The policy breaks, and with it what it had learned."""
    numbers = found.measures
    alarm = numbers.sign(Sign.reward_collapse)
    fall = alarm.evidence["since"] if alarm else 0
    drifting = {sign.name for sign in _DRIFTING}
    signs = [
        one.since
        for one in numbers.alarms
        if one.sign in drifting and fall - _AHEAD <= one.since <= fall
    ]
    quiet = [v for step, v in numbers.values("silent").items() if fall - _AHEAD <= step < fall]
    evidence = [
        Evidence("reward lost", 3, alarm is not None,
            alarm.sentence if alarm else "training reward is not lost", needed=True),
        Evidence("mismatch first", 2, _known(bool(signs), bool(numbers.scored)),
            f"signs of a growing mismatch came first, since step {min(signs)}" if signs
            else f"no sign of a growing mismatch in the {_AHEAD} steps before"),
        Evidence("few groups trained", 1, None if not quiet else sum(quiet) / len(quiet) >= 0.75,
            "rewards before are unknown" if not quiet
            else f"in the {len(quiet)} steps before, {sum(quiet) / len(quiet):.0%} of the groups "
            "carried no signal: few samples moved the weights"),
        _held_out_lost(found, 1),
        _spread(found),
    ]  # fmt: skip
    return evidence, Account(since=min([*signs, fall]) if alarm else None)


def silent(found: Examination) -> tuple[list[Evidence], Account]:
    """Nothing is trained, or nothing is measured, although groups carry signal."""
    now, rise = found.measures.now(Sign.silent), _rise(found)
    evidence = [
        Evidence("nothing arrives", 5, now is not None,
            now.sentence if now else "no gradient, weight of the loss or mismatch of 0 is told",
            needed=True),
        Evidence("reward flat", 1, None if rise is None else abs(rise) < _ROSE, _rewards(found)),
    ]  # fmt: skip
    return evidence, Account(since=now.evidence["since"] if now else None)


def no_signal(found: Examination) -> tuple[list[Evidence], Account]:
    """Groups agree, and not because their tasks were learned."""
    (agreed, since), rise = _agreed(found.measures), _rise(found)
    fell = found.measures.sign(Sign.reward_collapse)
    evidence = [
        agreed,
        Evidence("not learned", 2, None if rise is None else rise < _ROSE, _rewards(found),
            needed=True),
        Evidence("not lost", 3, _known(fell is None, rise is not None),
            fell.sentence if fell else "training reward is not lost"),
    ]  # fmt: skip
    return evidence, Account(since=since)


def saturation(found: Examination) -> tuple[list[Evidence], Account]:
    """What these tasks can teach is learned."""
    (agreed, since), rise = _agreed(found.measures), _rise(found)
    evidence = [
        agreed,
        Evidence("learned", 2, None if rise is None else rise >= _ROSE, _rewards(found),
            needed=True),
        _calm(found, 1),
    ]  # fmt: skip
    return evidence, Account(since=since)


def harmless(found: Examination) -> set[str]:
    """Open signs that a healthy run may have: a policy that learns grows surer, and its groups come
    to agree."""
    told = {Sign.visits.name}
    if (_rise(found) or 0.0) >= _ROSE:
        told.add(Sign.zero_signal.name)
        if _collapsing(found.measures) is not None:
            told.add(Sign.entropy.name)
    return told


def _agree_since(numbers: Measures) -> int | None:
    """The step since which nearly all groups carry no signal; None: they carry one at the end.

    By medians over as many steps as the end has: a few steps in a row agree by chance.
    """
    values, count = numbers.values("silent"), numbers.edge
    steps = list(values)
    ends = range(len(steps), count - 1, -1)
    medians = ((end, median(values[step] for step in steps[end - count : end])) for end in ends)
    agree = [end for end, share in takewhile(lambda one: one[1] >= AGREED, medians)]
    if not agree:
        return None
    return next(step for step in steps[agree[-1] - count :] if values[step] >= AGREED)


def _agreed(numbers: Measures) -> tuple[Evidence, int | None]:
    """Whether nearly all groups carry no signal at the end, and since which step."""
    since, share = _agree_since(numbers), numbers.late("silent")
    told = (
        "whether groups agree is unknown" if share is None
        else f"at the end {share:.0%} of groups carry no signal (median of {numbers.edge} steps)"
    )  # fmt: skip
    holds = _known(since is not None, bool(numbers.values("silent")))
    return Evidence("groups agree", 3, holds, told, needed=True), since


def _collapsing(numbers: Measures) -> Alarm | None:
    """The open alarm of entropy, if it falls."""
    alarm = numbers.sign(Sign.entropy)
    return alarm if alarm is not None and "Entropy collapses" in alarm.sentence else None


def _rise(found: Examination) -> float | None:
    """By how much training reward has risen; None where rewards are unknown."""
    before, after = found.measures.early("reward"), found.measures.late("reward")
    return None if before is None or after is None else after - before


def _rewards(found: Examination) -> str:
    before, after = found.measures.early("reward"), found.measures.late("reward")
    if before is None or after is None:
        return "rewards are unknown"
    return f"training reward went from {before:.2f} to {after:.2f}"


def _mismatched(found: Examination) -> Evidence:
    numbers = found.measures
    kl, alarm = numbers.late("kl"), numbers.sign(Sign.mismatch_growth)
    if kl is None:
        return Evidence("mismatch", 2, None, "the mismatch is unknown", needed=True)
    told = alarm.sentence if alarm else f"train_rollout_kl is {kl:.3g} at the end"
    return Evidence("mismatch", 2, kl > _HEALTHY_KL or alarm is not None, told, needed=True)


def _held_out_lost(found: Examination, weight: float, needed: bool = False) -> Evidence:
    numbers = found.measures
    alarm = numbers.sign(Sign.held_out_churn)
    return Evidence("held-out tasks lost", weight, _known(alarm is not None, numbers.evaluated),
        "fewer than two evaluations" if not numbers.evaluated
        else alarm.sentence if alarm else "held-out tasks are not lost", needed)  # fmt: skip


def _since_held_out(found: Examination) -> Account:
    """From the last evaluation that is nearer to the best one than to the last, to the next."""
    evals = found.about.evals
    rewards = {step: mean_reward(evals[step]) for step in sorted(evals) if evals[step]}
    *_, last = rewards.values()
    middle = (max(rewards.values()) + last) / 2
    held = max(step for step, reward in rewards.items() if reward > middle)
    return Account(held, until=min(step for step in rewards if step > held))


def _calm(found: Examination, weight: float) -> Evidence:
    kl = found.measures.late("kl")
    return Evidence("mismatch calm", weight, None if kl is None else kl <= _HEALTHY_KL,
        "the mismatch is unknown" if kl is None
        else f"train_rollout_kl is {kl:.3g} at the end")  # fmt: skip


def _spread(found: Examination) -> Evidence:
    """Against the published mechanism: few turns do not explain the drift."""
    shares = [one.late_drift_share for one in found.families if one.late_drift_share is not None]
    share = sum(shares)
    return Evidence("not few turns", 2, share < _FEW,
        f"near-identical turns hold {share:.0%} of all |D| at the end")  # fmt: skip


def _since_growth(found: Examination, tokens: str) -> Account:
    alarm = found.measures.sign(Sign.mismatch_growth)
    name, limit, first = "kl", _HEALTHY_KL, 0
    if alarm is not None:
        first, limit = alarm.evidence["since"], _CLEAR * alarm.evidence["baseline"]
        name = "kl" if alarm.evidence["metric"] == KL else "drift"
    values = found.measures.values(name)
    since = next((step for step in values if step >= first and values[step] > limit), None)
    tasks = by_task(found.measures.scans[-found.measures.edge :])
    return Account(since, sorted(tasks, key=lambda one: -tasks[one]), tokens=tokens)


def _known(holds: bool, known: bool) -> bool | None:
    return holds if known else None


def _onset(worst: Profile, signs: list[Alarm]) -> int:
    """From where on a family's drift is clearly above its beginning; else since when signs say."""
    moves = {one.step: one.drift for one in worst.moves if one.drift is not None}
    calm = min(next(iter(moves.values()), 0.0), worst.first_drift or 0.0)
    grown = list(takewhile(lambda step: moves[step] > _CLEAR * calm, reversed(moves)))
    told = grown[-1:] if grown else [one.since for one in signs]
    return max(worst.steps[0], min(told, default=worst.steps[0]))


def _tasks(families: list[Profile]) -> list[str]:
    return list(dict.fromkeys(task for one in families for task in one.tasks))


def _samples(families: list[Profile]) -> list[str]:
    return [sample for one in families[:3] for sample in one.samples]


def _sum(values: list[Any]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _mean(values: list[tuple[float | None, int]]) -> float | None:
    """Weighted, of the values that are known."""
    known = [(value, weight) for value, weight in values if value is not None and weight]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


_MORE_TASKS = (("data=train69",), ("data=mini69",))

MECHANISMS = (
    Mechanism(
        "repeated_negative_turns", "near-identical giant turns, pushed down step after step",
        repeated_turns, (("sentinel=mask",), ("clip.overlong=mask",)),
        "right: mean |D| of near-cap turns stays as before the onset; wrong: it grows as here",
        "clip.overlong=mask or sentinel=mask, and more tasks a step (data=train69)",
    ),
    Mechanism(
        "staleness", "mismatch of stale tokens", staleness,
        (("rollout.lag=0",), ("rollout.max_staleness=0",), ("rollout.mode=sync",)),
        "right: the mismatch falls to that of fresh tokens at once; wrong: it stays",
        "rollout.max_staleness=0 or 1 (rollout.lag in rollout.mode=sync), or clip.correction=dppo",
    ),
    Mechanism(
        "engine_numerics", "engine and trainer compute differently", engine,
        (("engine.dtype=bfloat16",), ("engine.dtype=float32",)),
        "right: the mismatch of the first steps falls; wrong: it stays. If the engine's precision "
        "is that of the trainer already, look for other weights, temperature or kernels",
        "the engine's precision, its kernels, whether its weights are the trainer's",
    ),
    Mechanism(
        "overfitting", "held-out tasks are lost with a calm mismatch", churn,
        _MORE_TASKS,
        "right: the held-out reward holds where it fell here, of fewer visits a task; wrong: it "
        "falls as here",
        "more tasks, fewer visits a task, the checkpoint before the loss",
    ),
    Mechanism(
        "entropy_collapse", "the policy becomes deterministic", collapse,
        (("clip.entropy_coef=0.001",),),
        "right: entropy stays and groups keep their signal; wrong: it falls as here",
        "clip.entropy_coef, a higher clip.eps_high, a higher rollout.temperature",
    ),
    Mechanism(
        "length_explosion", "samples grow into their limits", length,
        (("clip.overlong=penalty",), ("clip.overlong=mask",)),
        "right: truncated samples stay few; wrong: they grow as here",
        "clip.overlong=penalty or clip.overlong=mask",
    ),
    Mechanism(
        "nothing_trained", "nothing is trained, or nothing is measured", silent,
        (("clip.correction=none",),),
        "right: the steps from there on show a gradient above 0; wrong: still none, and the cause "
        "lies in the optimizer",
        "what the sentence of the evidence names: mask, correction or the engine's scores",
        after=3,
    ),
    Mechanism(
        "no_signal", "groups carry no signal, and not because their tasks are learned", no_signal,
        (*_MORE_TASKS, ("rollout.samples_per_prompt={twice}",)),
        "right: groups carry signal; wrong: they agree as here, and whether the verifiers can pass "
        "is the next question",
        "whether the verifiers can pass at all, other tasks, more samples a group",
        after=3,
    ),
    Mechanism(
        "saturation", "steps teach nothing more, the tasks are learned as far as they go",
        saturation,
        _MORE_TASKS,
        "right: groups carry signal again; wrong: they agree as here",
        "more or harder tasks, or the end of the run: steps are spent on groups that agree",
        benign=True,
    ),
    Mechanism(
        "reward_collapse", "the policy breaks, and what was learned is lost", lost,
        (("rollout.lag=0",), ("rollout.max_staleness=0",), ("optim.lr={third:.1e}",)),
        "right: training reward holds where it fell here; wrong: it is lost as here, and what is "
        "left of fresher batches and a lower optim.lr is the next test",
        "the checkpoint before, fresher batches or a lower optim.lr; "
        "+sentinel.actions.mismatch_growth=stop where a mismatch came first",
        after=_AHEAD + 20,
    ),
)  # fmt: skip
"""In the order in which equal scores are told."""
