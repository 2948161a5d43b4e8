"""An examination for a person: the verdict, what it rests on, what moved; and as JSON."""

import math
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..influence import Apart, print_influence
from ..terminal import print_line, print_table, suited
from .examine import Examination
from .measures import by_age, by_task
from .profiles import Profile
from .verdict import Verdict

_MARKS = {True: ("+", "green"), False: ("-", "red"), None: ("?", "yellow")}
_BARS = " ▁▂▃▄▅▆▇█"
_FAMILIES = 5
_PARTS = 6
_EXCERPT = 160
_CURVES = {
    "reward": "training reward",
    "truncated": "truncated share",
    "kl": "train_rollout_kl",
    "drift": "mean |D|",
    "drift_giant": "mean |D| near the cap",
    "entropy": "entropy",
    "giant_turns": "turns near the cap",
}


def show(found: Examination, said: Verdict, console: Console | None = None) -> None:
    """Prints the verdict first, then evidence, curves and families."""
    console = suited(console)

    def line(text: str, style: str = "", indent: int = 0) -> None:
        print_line(console, Text(printable(text), style), indent)

    colour = "green" if said.healthy else "yellow" if said.name == "undetermined" else "red"
    sure = f" ({said.confidence}, {said.score:.2f})" if said.confidence else ""
    line(f"{said.sentence}{sure}", f"bold {colour}")
    steps = found.measures.steps
    if steps:
        line(f"{found.about.name}, {found.about.kind}, steps {steps[0]} to {steps[-1]}", indent=2)
    account = said.account
    for label, told in (
        ("since", None if account.since is None else f"step {account.since}"),
        ("tasks", _some(account.tasks, 5)),
        ("turns", _some(account.turns, 3)),
        ("tokens", account.tokens),
        ("change", said.remedy),
    ):
        if told:
            line(f"{label:<8}{told}", indent=2)
    best = said.findings[0] if said.findings and said.findings[0].told else None
    if best is not None and said.name == best.mechanism.name:
        line("evidence", "bold")
        for one in best.evidence:
            mark, style = _MARKS[one.holds]
            line(f"{mark} {one.name}: {one.sentence}", style, 2)
    if said.against:
        line("against it", "bold")
        for told in said.against:
            line(told, indent=2)
    if said.experiment is not None:
        line("would test it", "bold")
        line(said.experiment.command, "cyan", 2)
        line(said.experiment.predicts, indent=2)
    if steps:
        line("the run", "bold")
        print_table(console, _curves(found), 2)
    _families(console, found)
    for step, parts in _influence(found).items():
        print_influence(console, step, parts, _PARTS)
    for title, sentences in (("can't be told", said.unknown), ("files", found.warnings)):
        if sentences:
            line(title, "bold")
            for told in sentences[:10]:
                line(told, indent=2)
            if len(sentences) > 10:
                line(f"and {len(sentences) - 10} more", indent=2)


def _curves(found: Examination) -> Table:
    table = Table("", "first", "last", "", box=None, pad_edge=False)
    for name, told in _CURVES.items():
        values = found.measures.values(name)
        early, late = found.measures.early(name), found.measures.late(name)
        if early is not None and late is not None:
            table.add_row(told, f"{early:.3g}", f"{late:.3g}", bars(list(values.values())))
    return table


def _influence(found: Examination) -> dict[int, Apart]:
    known = found.about.influence
    return {step: known[step] for step in found.measures.steps if step in known}


def _families(console: Console, found: Examination) -> None:
    if found.families or found.repeats:
        more = len(found.families) - _FAMILIES
        rest = f", {more} more in --json" if more > 0 else ""
        rest += f", {found.more_families} lesser ones not read" if found.more_families else ""
        print_line(console, Text(f"turns that come again{rest}", "bold"))
    for one in found.families[:_FAMILIES]:
        for text, style in _family(one):
            print_line(console, Text(printable(text), style), 2)
    for same in found.repeats[:3]:
        print_line(
            console,
            Text(
                f"{same.count} times to the token in {same.steps} steps: {same.tokens} tokens, "
                f"first {same.sample_id} turn {same.number}"
            ),
            2,
        )


def _family(one: Profile) -> list[tuple[str, str]]:
    first, last, many = one.steps[0], one.steps[-1], len(one.steps)
    where = f"{many} steps, {first} to {last}" if many > 1 else f"step {first}"
    told = [
        (
            f"{one.name}  {_some(one.tasks, 2)}: {one.turns} turns of {one.tokens_mean:,.0f} "
            f"tokens in {where}",
            "bold",
        )
    ]
    if one.advantage is not None and one.negative_share is not None:
        pushed = f"mean A {one.advantage:+.2f}, {one.negative_share:.0%} of pushed tokens down; "
    else:
        pushed = ""
    told.append((f"{pushed}likeness at least {one.likeness:.2f}, {one.looped:.0%} in loops", ""))
    if one.first_drift is not None and one.last_drift is not None:
        drift = f"|D| {one.first_drift:.3g} → {one.last_drift:.3g}"
        share = f", {one.drift_share:.0%} of all |D|" if one.drift_share is not None else ""
        told.append((f"{drift}{share}  {bars([move.drift or 0 for move in one.moves])}", ""))
    changes = [move.trainer_change for move in one.moves if move.trainer_change is not None]
    if changes:
        told.append(
            (
                "trainer's mean log-prob of its content, from one to the next: "
                f"{sum(changes):+.3g} in all, {sum(c < 0 for c in changes)} of {len(changes)} down",
                "",
            )
        )
    if one.heat:
        peak = max(range(len(one.heat)), key=one.heat.__getitem__) / len(one.heat)
        told.append((f"along the turn {bars(one.heat, 0)} peak at {peak:.0%}", ""))
    kinds = [repr(kind.get("text", kind["id"])) for kind in one.token_types[:6]]
    if kinds:
        told.append((f"tokens with most |D|: {' '.join(kinds)}", ""))
    ids = " ".join(map(str, one.excerpt_ids[:20]))
    excerpt = repr(one.excerpt[:_EXCERPT]) if one.excerpt is not None else f"token ids {ids}"
    return [*told, (f"says {excerpt}", "dim")]


def bars(values: list[float], least: float | None = None, width: int = 20) -> str:
    """A line of blocks, from the least value to the largest, `width` at most."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return ""
    size = max(1, math.ceil(len(known) / width))
    means = [
        sum(known[i : i + size]) / len(known[i : i + size]) for i in range(0, len(known), size)
    ]
    low = min(means) if least is None else least
    span = max(max(means) - low, 1e-12)
    return "".join(_BARS[1 + round((len(_BARS) - 2) * (value - low) / span)] for value in means)


def printable(text: str) -> str:
    """Names in dumps of others may hold what moves a terminal's cursor."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def _some(names: list[str], most: int) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def as_json(found: Examination, said: Verdict) -> dict[str, Any]:
    """Everything, as plain values; docs/forensics.md tells the keys."""
    numbers = found.measures
    late = numbers.scans[-numbers.edge :]
    whole = {
        "run": found.about.name,
        "kind": found.about.kind,
        "steps": numbers.steps,
        "verdict": {
            "name": said.name,
            "healthy": said.healthy,
            "sentence": said.sentence,
            "confidence": said.confidence,
            "score": said.score,
            "account": asdict(said.account),
            "against": said.against,
            "remedy": said.remedy,
            "experiment": None if said.experiment is None else asdict(said.experiment),
            "unknown": said.unknown,
        },
        "mechanisms": [
            {
                "name": one.mechanism.name,
                "title": one.mechanism.title,
                "score": one.score,
                "confidence": one.confidence,
                "evidence": [asdict(piece) for piece in one.evidence],
                "account": asdict(one.account),
            }
            for one in said.findings
        ],
        "series": numbers.series,
        "alarms": [asdict(one) for one in numbers.alarms],
        "drift_by_age": {age: drift for age, (drift, _) in by_age(late).items()},
        "drift_by_task": by_task(late),
        "heat": {one.step: one.heat.tolist() for one in numbers.scans if one.heat is not None},
        "families": [asdict(one) for one in found.families],
        "more_families": found.more_families,
        "influence": {step: asdict(apart) for step, apart in _influence(found).items()},
        "repeats": [asdict(one) for one in found.repeats],
        "repeated_share": found.repeated_share,
        "unread_steps": found.unread,
        "warnings": found.warnings,
    }
    plain: dict[str, Any] = _plain(whole)
    return plain


def _plain(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value
