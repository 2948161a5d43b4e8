"""Runs a study point by point: a sweep whose points are the arms of a plan, seed after seed."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ..analysis.study import recorded
from ..analysis.study.page import write_page
from ..analysis.study.plan import PLAN_FILE, SET_SIZE, Plan, load_plan, point_name, save_plan
from ..analysis.sweep_files import SWEEP_FILE, SweepFiles
from ..config.compose import compose_unchecked
from ..config.errors import UserError
from ..config.paths import short
from ..config.schema import RunConfig
from ..config.words import counted
from . import sweep
from .sweep_plan import Plan as SweepPlan
from .sweep_plan import Point, create, draft, raise_told


def run(study_dir: Path, quick: bool, arms: Sequence[str], allow: bool) -> int:
    """Makes a study where there is none, runs what is missing of it, and writes its page.

    Args:
        quick: of a new study: the part that ends in minutes.
        arms: those that are run now; none: all.
        allow: also runs that would go on under another identity, which is then recorded.

    Returns the exit code of :func:`.sweep.resume`. Raises UserError before anything is started.
    """
    plan = _plan(study_dir, quick)
    if unknown := sorted(set(arms) - set(plan.arms)):
        raise UserError(
            f"The study has no arm {', '.join(unknown)}; write some of {', '.join(plan.arms)}."
        )
    _make(study_dir, plan)
    write = partial(write_page, study_dir)
    states = recorded.states(SweepFiles.open(study_dir))
    chosen = {point_name(arm, seed) for arm in arms or plan.arms for seed in plan.seeds}
    todo = {name for name in chosen if states.get(name) != "recorded"}
    if made := len(chosen) - len(todo):
        print(f"{made} of {counted(len(chosen), 'run')} are recorded, and not run here.")
    try:
        return sweep.resume(study_dir, allow, todo, after=write) if todo else 0
    finally:
        print(f"{short(write())} tells what the study has found so far.")


def take_recorded(study_dir: Path, quick: bool) -> None:
    """Makes a study where there is none, and takes the runs that are recorded with the project.

    Tells how many, and which are left. Raises UserError when the study cannot be made.
    """
    _make(study_dir, _plan(study_dir, quick))
    taken, left = recorded.take(study_dir, recorded.RECORDED)
    number = len(SweepFiles.open(study_dir).points)
    told = f"{len(taken)} of {number} runs are taken from those recorded in"
    print(f"{told} {short(recorded.RECORDED)}.")
    for name, fact in left.items():
        print(f"  {name} is left: it was recorded of another run, whose {fact} differs.")


def _make(study_dir: Path, plan: Plan) -> None:
    if study_dir.exists() and not (study_dir / SWEEP_FILE).exists():
        raise UserError(f"{short(study_dir)} is there, and is no study; name another folder.")
    if not (study_dir / SWEEP_FILE).exists():
        _create(study_dir, plan)
    if not (study_dir / PLAN_FILE).exists():
        save_plan(plan, study_dir / PLAN_FILE)


def _plan(study_dir: Path, quick: bool) -> Plan:
    """The plan of a study that is there, or of the one to make."""
    if (study_dir / PLAN_FILE).exists():
        return load_plan(study_dir / PLAN_FILE)
    plan = load_plan(SET_SIZE)
    return plan.shortened() if quick else plan


def _create(study_dir: Path, plan: Plan) -> None:
    """Makes the study's folder, whole or not at all. Raises UserError with all problems."""
    planned = plan.points()
    print(f"Checking {len(planned)} runs ...", flush=True)
    names = [name for name, _, _ in planned]
    base = (*plan.base, "name=study", f"runs_dir={study_dir.parent}")
    drafted = draft([[*base, *overrides] for _, _, overrides in planned], _composed)
    raise_told(drafted.problems, names, "start")
    points = [
        Point(name, tuple(overrides), drafted.composed[old])
        for (name, _, overrides), old in zip(planned, drafted.names, strict=True)
    ]
    create(SweepPlan(base, tuple(points)), study_dir)


def _composed(overrides: Sequence[str]) -> RunConfig:
    return compose_unchecked(list(overrides))
