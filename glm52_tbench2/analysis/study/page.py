"""STUDY/study.html: what a study found so far, from the folders of its runs alone."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from ...config.compose import compose_unchecked, leaves
from ...config.files import atomic_write_bytes
from ..charts import Points, Series, line_chart
from ..figures import Figure
from ..report import assets, template
from ..stats import interval_over_runs
from ..sweep_files import SweepFiles
from . import recorded
from .compare import (
    CLOCKS,
    LAST,
    LEAST_TURNS,
    ONSET,
    OUTCOMES,
    PRIMARY,
    SAME,
    SENSITIVITY,
    Effect,
    Runs,
    effects,
    horizon,
    judge,
    losses,
    matters_most,
    notes,
    onsets,
    reached,
)
from .measures import PROBABILITIES, VISITS, Measures, kept, measured
from .plan import BASE, PLAN_FILE, Plan, load_plan, point_name
from .recorded import measures_path

PAGE_FILE = "study.html"
PUBLISHED = (("experiment=job1794",), ("experiment=job2350",))
"""The published healthy run and the diverging ones."""
DONE = ("finished", "recorded")
_SIGNS = ("A < 0", "A = 0", "A > 0")


@dataclass(frozen=True)
class Knob:
    """A knob that the two published runs differ in."""

    name: str
    healthy: object
    diverging: object
    arms: list[str]
    """Titles of the arms that change it alone, with what they came to."""


@dataclass(frozen=True)
class Cube:
    """Mean |D| of an arm's tokens, pooled over its runs."""

    title: str
    blocks: list[tuple[str, list[tuple[str, list[str]]]]]
    """Visits -> rows by probability -> a cell a sign and capped or not."""


def write_page(study_dir: Path) -> Path:
    """Writes STUDY/study.html and returns its path. Raises UserError if it is no study's folder."""
    path = study_dir / PAGE_FILE
    atomic_write_bytes(path, render(study_dir).encode())
    return path


def render(study_dir: Path) -> str:
    """The page."""
    plan = load_plan(study_dir / PLAN_FILE)
    states = recorded.states(SweepFiles.open(study_dir))
    runs = read_runs(plan, study_dir, states)
    found = {
        clock: {one.key: effects(plan, runs, clock, one) for one in OUTCOMES} for clock in CLOCKS
    }
    primary = found["steps"][PRIMARY.key]
    of_arm = {arm: list(of.values()) for arm, of in runs.items()}
    whole = [m for m in runs.get(BASE, {}).values() if m.steps >= plan.steps]
    return template("study.html.j2").render(
        name=study_dir.resolve().name,
        written=time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        plan=plan,
        num_finished=sum(state in DONE for state in states.values()),
        num_recorded=sum(state == "recorded" for state in states.values()),
        num_runs=len(states),
        progress=[
            (
                arm.title,
                [(seed, states.get(point_name(name, seed), "missing")) for seed in plan.seeds],
            )
            for name, arm in plan.arms.items()
        ],
        unfinished=sorted(name for name, state in states.items() if state not in DONE),
        made_by=_made_by(runs),
        most=matters_most(plan, primary),
        base_told=_base(plan, whole),
        num_base=len(whole),
        outcomes=OUTCOMES,
        primary=PRIMARY,
        base_levels=[_base_level(plan, whole, number) for number in range(len(OUTCOMES))],
        families=_families(plan),
        found=found,
        clocks=CLOCKS,
        begun=set(runs),
        onsets=_each(plan, of_arm, onsets),
        losses=_each(plan, of_arm, losses),
        peak_turns=_each(plan, of_arm, _peak_turns),
        sensitivity={clock: effects(plan, runs, clock, SENSITIVITY) for clock in CLOCKS},
        least_turns=LEAST_TURNS,
        notes={clock: notes(plan, runs, clock) for clock in CLOCKS},
        lost_told=_lost(plan, runs),
        bursts=ONSET,
        same=SAME,
        claims=[
            (claim, effect, judge(claim, effect))
            for claim in plan.claims
            for effect in [found[claim.clock][PRIMARY.key].get(claim.arm)]
        ],
        knobs=_published(plan, primary),
        figures=_figures(plan, runs),
        cubes=[
            _cube(arm.title, list(runs[name].values()))
            for name, arm in plan.arms.items()
            if runs.get(name)
        ],
        signs=_SIGNS,
        **assets(),
    )


def read_runs(plan: Plan, study_dir: Path, states: Mapping[str, str]) -> Runs:
    """What each run that has begun, or was made elsewhere, came to."""
    runs: dict[str, dict[int, Measures]] = {}
    for arm in plan.arms:
        for seed in plan.seeds:
            name = point_name(arm, seed)
            state, keep = states.get(name, "missing"), measures_path(study_dir, name)
            if state in ("missing", "waiting"):
                continue
            of = kept(keep) if state == "recorded" else measured(study_dir / name, keep)
            if of is not None and of.steps:
                runs.setdefault(arm, {})[seed] = of
    return runs


def _made_by(runs: Runs) -> list[tuple[str, str, str, int]]:
    """(code, revision, machine, number of runs) of all runs, the most first."""
    found = Counter[tuple[str, str, str]]()
    for run in (run for of in runs.values() for run in of.values()):
        made = run.identity.get("made") or {}
        machine = made.get("machine") or {}
        revision = (made.get("revision") or "unknown")[:7] + ("*" if made.get("changes") else "")
        where = f"{machine.get('cpu', 'unknown')}, {machine.get('cores', '?')} cores"
        found[run.identity.get("code", "unknown")[:12], revision, where] += 1
    return [(*key, count) for key, count in found.most_common()]


def _each(
    plan: Plan,
    runs: Mapping[str, Sequence[Measures]],
    told: Callable[[Plan, Sequence[Measures], str], str],
) -> dict[str, dict[str, str]]:
    """Clock -> arm -> what is told of its runs."""
    return {clock: {arm: told(plan, of, clock) for arm, of in runs.items()} for clock in CLOCKS}


def _peak_turns(plan: Plan, runs: Sequence[Measures], clock: str) -> str:
    """On how many capped turns each run's peak rests, as text; "" where no run has come so far."""
    return ", ".join(str(run.peak_turns(upto)) for run, upto in reached(plan, runs, clock))


def _families(plan: Plan) -> list[tuple[str, list[str]]]:
    """Family -> its arms, without the base."""
    found: dict[str, list[str]] = {}
    for name, arm in plan.arms.items():
        if name != BASE:
            found.setdefault(arm.family, []).append(name)
    return list(found.items())


def _base(plan: Plan, whole: Sequence[Measures]) -> str:
    """Whether the divergence is there at all in the base arm, in a sentence."""
    if not whole:
        return "The base arm has no finished run yet, so nothing can be compared."
    peaks = [peak for run in whole if (peak := run.peak(plan.steps)) is not None]
    hit = sum(run.onset(ONSET, plan.steps) is not None for run in whole)
    reach = f"from {min(peaks):.3g} to {max(peaks):.3g}" if peaks else "unknown: no turn was capped"
    told = (
        f"{hit} of {len(whole)} base runs burst (drift above {ONSET}) within {plan.steps} steps; "
        f"their peaks are {reach}."
    )
    if hit == 0:
        told += (
            " The published divergence is not reproduced in this setting: what follows compares "
            "drifts that stay small."
        )
    return told


def _lost(plan: Plan, runs: Runs) -> str:
    """Which runs lost what they had learned, in a sentence; "" where none did."""
    found = [
        f"{plan.arms[arm].title}, seed {seed}, at {run.visits[step - 1]:.0f} visits a task "
        f"(step {step})"
        for arm, of in runs.items()
        for seed, run in of.items()
        if (step := run.lost_since(LAST, run.steps)) is not None
    ]
    return f"Runs that lost what they had learned: {'; '.join(found)}." if found else ""


def _base_level(plan: Plan, whole: Sequence[Measures], number: int) -> str:
    values = [v for run in whole if (v := OUTCOMES[number].value(run, plan.steps)) is not None]
    interval = interval_over_runs(values)
    return "–" if interval is None else f"{interval.mean:.3g}"


def _published(plan: Plan, primary: Mapping[str, Effect]) -> list[Knob]:
    """What the published runs differ in, and the arms that change each of these knobs alone."""
    healthy, diverging = map(_knobs, PUBLISHED)
    base = _knobs(tuple(plan.base))
    alone: dict[str, list[str]] = {}
    for name, arm in plan.arms.items():
        own = _knobs((*plan.base, *arm.overrides))
        changed = [knob for knob in base if base[knob] != own.get(knob)]
        if len(changed) == 1:
            effect = primary.get(name)
            told = f"{effect.shown}, {effect.verdict}" if effect else "no pair of runs yet"
            alone.setdefault(changed[0], []).append(f"{arm.title}: {told}")
    return [
        Knob(knob, healthy[knob], diverging[knob], alone.get(knob, []))
        for knob in healthy
        if healthy[knob] != diverging[knob] and knob != "name"
    ]


@cache
def _knobs(overrides: tuple[str, ...]) -> dict[str, object]:
    return leaves(compose_unchecked(list(overrides)))


# --- figures -------------------------------------------------------------------------------------


def _figures(plan: Plan, runs: Runs) -> list[Figure]:
    """The drift of each family's arms beside the base's, by steps and by visits a task."""
    found = []
    for family, arms in _families(plan):
        for clock in CLOCKS:
            series = [
                Series(plan.arms[arm].title, _curve(plan, list(runs[arm].values()), clock), colour)
                for colour, arm in enumerate([BASE, *arms][:8], 1)
                if runs.get(arm)
            ]
            by = "step" if clock == "steps" else "visits a task"
            chart = line_chart(series, f"Drift on capped turns, {family}, by {by}", log=True)
            hint = (
                f"By {by}; mean over the runs of an arm of the mean |D| over six steps, log axis."
            )
            legend = [(one.colour, one.name) for one in series if one.points]
            found.append(Figure(f"{family}, by {by}", hint, chart, legend))
    return found


def _curve(plan: Plan, runs: Sequence[Measures], clock: str) -> Points:
    """Step, or whole visits -> geometric mean of the runs' drifts."""
    values: dict[int, list[float]] = {}
    for run in runs:
        last = horizon(plan, run, clock) or run.steps
        own: dict[int, float] = {}
        for step, drift in run.drift().items():
            if step <= last and drift > 0:
                own[step if clock == "steps" else round(run.visits[step - 1])] = drift
        for at, drift in own.items():
            values.setdefault(at, []).append(drift)
    return {at: float(np.exp(np.mean(np.log(of)))) for at, of in sorted(values.items())}


# --- tokens --------------------------------------------------------------------------------------


def _cube(title: str, runs: Sequence[Measures]) -> Cube:
    pooled: dict[str, list[float]] = {}
    for run in runs:
        for key, (total, count) in run.cells.items():
            cell = pooled.setdefault(key, [0.0, 0])
            cell[0] += total
            cell[1] += count
    edges = (0.0, *PROBABILITIES, 1.0)
    times = sorted({int(key.split("/")[0]) for key in pooled})
    blocks = []
    for at in times:
        rows = []
        for number in range(len(edges) - 1):
            cells = [
                _mean(pooled.get(f"{at}/{number}/{sign}/{capped}"))
                for capped in (1, 0)
                for sign in range(3)
            ]
            rows.append((f"{edges[number]:g} to {edges[number + 1]:g}", cells))
        blocks.append((f"visits {at * VISITS:g} to {(at + 1) * VISITS:g}", rows))
    return Cube(title, blocks)


def _mean(cell: list[float] | None) -> str:
    """Mean |D|, and how many tokens it is over."""
    return "–" if cell is None else f"{cell[0] / cell[1]:.3g} ({int(cell[1])})"
