"""Runs the points of a sweep on this machine, one after another, and goes on with a stopped one."""

import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ..analysis.report import write_report
from ..analysis.sweep_files import STOPPED_BY_SIGNAL, SweepFiles, SweepPoint, note
from ..analysis.sweep_page import terminal, write_page
from ..analysis.sweep_table import COLUMNS, Reader, Row, Table, write_csv
from ..config.compose import compose, load_run_config
from ..config.errors import UserError
from ..config.identity import load_identity
from ..config.once import looked_up_once
from ..config.paths import command, short
from ..config.schema import RunConfig, Scheduler
from ..config.words import counted
from . import preflight
from .progress import duration
from .run_folder import differing, identity_now, lock
from .slurm import train as slurm
from .supervisor import USER_ERROR, Ended
from .sweep_plan import Plan, create, raise_told, write_point
from .train import go_on

_UNBOUNDED = 1000
INTERRUPTED = STOPPED_BY_SIGNAL + signal.SIGINT


def start(planned: Plan, sweep_dir: Path) -> list[int]:
    """Runs a new sweep, or queues it where the scheduler is Slurm; each point's exit code.

    0 finished or queued, 1 failed, 2 refused, 128 + N stopped by signal N or not started because
    of it. Raises UserError, before anything is started, when its folder cannot be made.
    """
    create(planned, sweep_dir)
    sweep = SweepFiles.open(sweep_dir)
    if planned.points[0].config.cluster.scheduler is Scheduler.slurm:
        configs = [point.config for point in planned.points]
        slurm.queue_sweep(
            sweep.path, {one.path: c for one, c in zip(sweep.points, configs, strict=True)}
        )
        return [0] * len(configs)
    return _run(sweep, allow=False)


def resume(
    sweep_dir: Path,
    allow: bool,
    only: Collection[str] | None = None,
    after: Callable[[], object] | None = None,
) -> int:
    """Runs what is missing of a sweep, each point from where it stands; returns the exit code.

    Args:
        allow: also runs that would go on under another identity, which is then recorded.
        only: names of the points that are meant; None: all.
        after: called after each point, here but not under Slurm; what it raises is told.

    Raises UserError, before anything is started, with all that stands in the way of any point.
    """
    sweep = SweepFiles.open(sweep_dir)
    if only is not None:
        sweep = replace(sweep, points=[one for one in sweep.points if one.name in only])
    todo = _prepare(sweep, allow)
    if todo and load_run_config(todo[0].path).cluster.scheduler is Scheduler.slurm:
        slurm.resume_sweep(sweep, todo, allow)
        return 0
    return exit_code(_run(sweep, allow, after))


def show(sweep_dir: Path) -> None:
    """Writes table.csv and sweep.html again and prints the table."""
    sweep = SweepFiles.open(sweep_dir)
    table = Reader().read(sweep)
    write_csv(table)
    _print_table(table, write_page(table), Console())


def exit_code(codes: Sequence[int]) -> int:
    """Of a whole sweep: 0 all finished, 1 some failed, 128 + N stopped by signal N."""
    return next((code for code in codes if code >= STOPPED_BY_SIGNAL), int(any(codes)))


@looked_up_once()
def _prepare(sweep: SweepFiles, allow: bool) -> list[SweepPoint]:
    """The points that are not finished, checked, their run folders made again where removed."""
    todo = [point for point in sweep.points if sweep.status(point) != "finished"]
    problems: dict[str, list[int]] = {}
    removed: list[tuple[SweepPoint, RunConfig]] = []
    for number, point in enumerate(todo):
        try:
            if point.path.exists():
                config = load_run_config(point.path)
                found = [] if allow else _other_run(sweep, point, config)
            else:
                config = compose([*sweep.base, *point.overrides])
                removed.append((point, config))
                found = []
            found += preflight.problems(config)
        except UserError as error:
            found = str(error).splitlines()
        for problem in found:
            problems.setdefault(problem, []).append(number)
    raise_told(problems, [point.name for point in todo], "go on")
    for point, config in removed:
        write_point(point.path, config, sweep.path.name)
    return todo


def _other_run(sweep: SweepFiles, point: SweepPoint, config: RunConfig) -> list[str]:
    _, differences = differing(identity_now(config), *load_identity(point.path))
    if not differences:
        return []
    return [
        f"it would go on as another run than it was made as: {'; '.join(differences)}. Undo that, "
        f"or accept it with: {command('sweep', 'resume', sweep.path, '--allow')}"
    ]


def _run(sweep: SweepFiles, allow: bool, after: Callable[[], object] | None = None) -> list[int]:
    console, reader = Console(), Reader()
    with lock(sweep.path):
        codes = {point.name: 0 for point in sweep.points if sweep.status(point) == "finished"}
        todo = [(i, one) for i, one in enumerate(sweep.points, 1) if one.name not in codes]
        _greet(sweep, len(codes), console)
        stopped, took = INTERRUPTED, list[float]()
        try:
            for number, point in todo:
                of = f"Point {number} of {len(sweep.points)}"
                if sweep.status(point) == "finished":  # by a resume of this point alone
                    codes[point.name] = 0
                    _say(console, f"{of}  {point.name} is finished, by another command.\n")
                    continue
                console.print(_heading(of, point, took, len(todo)))
                began = time.monotonic()
                ended = _run_point(sweep, point, allow)
                codes[point.name] = ended.code
                if ended.code >= STOPPED_BY_SIGNAL:
                    stopped = ended.code
                    break
                took.append(time.monotonic() - began)
                row = _write_table(sweep, reader, point)
                if after is not None:
                    with _told("the runs go on."):
                        after()
                console.print(_result(of, point, ended, took[-1], row), soft_wrap=True)
                console.print()
        except KeyboardInterrupt:
            pass
        _finish(sweep, reader, console)
    return [codes.get(point.name, stopped) for point in sweep.points]


def _run_point(sweep: SweepFiles, point: SweepPoint, allow: bool) -> Ended:
    """Runs one point to its end, whatever happens to it."""
    with suppress(OSError):  # a full disk is told by the run
        note(sweep.path, point.name, None)
    try:
        ended = go_on(point.path, allow)
    except UserError as error:
        ended = Ended(USER_ERROR, str(error))
    except Exception as error:  # whatever it is, it must not stop the other points
        traceback.print_exc()
        ended = Ended(1, f"{type(error).__name__}: {error}")
    with suppress(OSError):
        note(sweep.path, point.name, ended.code, ended.text)
    if ended.code == 0:
        with _told(f"its report is not written; try: {command('report', point.path)}"):
            write_report(point.path)
    elif ended.text:
        print(ended.text, file=sys.stderr)
    return ended


# --- telling -------------------------------------------------------------------------------------


def _greet(sweep: SweepFiles, finished: int, console: Console) -> None:
    done = f", {finished} of them finished" if finished else ""
    what = ", ".join(sweep.varies) or "nothing"
    _say(console, f"Sweep folder: {short(sweep.path)}")
    _say(console, f"{len(sweep.points)} points{done}. What varies: {what}.\n")


def _heading(of: str, point: SweepPoint, took: Sequence[float], todo: int) -> Text:
    heading = Text.assemble((f"{of}  {point.name}", "bold"))
    if took:
        left = sum(took) / len(took) * (todo - len(took))
        heading.append(f"  about {duration(left)} left", "dim")
    return heading


def _result(of: str, point: SweepPoint, ended: Ended, took_s: float, row: Row | None) -> Text:
    if ended.code:
        why = _reason(ended.text)
        return Text(f"{of} failed after {duration(took_s)}: {point.name}: {why}", "red")
    told = f"{of} finished in {duration(took_s)}: {point.name}"
    if row is not None and row.cells["held_out_change"].known:
        cells = {
            c.key: f"{row.cells[c.key].text(c)} {row.cells[c.key].interval_text(c)}"
            for c in COLUMNS
        }
        before, after, change = (cells[f"held_out_{end}"] for end in ("before", "after", "change"))
        told += f": held-out {before} → {after}, change {change}"
    return Text(told.rstrip(), "green")


def _reason(text: str) -> str:
    """Why a run failed, in a line: the culprit, and the last thing its log said."""
    lines = text.splitlines() or ["no reason is known."]
    what, quoted, _ = lines[0].partition(" The end of ")
    if what.endswith(":") and len(lines) > 1:  # a list follows
        what += f" {lines[1].strip()}"
    return f"{what} {lines[-1].strip()}" if quoted else what


def _write_table(sweep: SweepFiles, reader: Reader, point: SweepPoint) -> Row | None:
    """Writes table.csv and sweep.html; the row of `point`. None when that fails, which is told."""
    with _told(f"the table is not written; try: {command('sweep', 'table', sweep.path)}"):
        table = reader.read(sweep)
        write_csv(table)
        write_page(table)
        return next(row for row in table.rows if row.name == point.name)
    return None


def _finish(sweep: SweepFiles, reader: Reader, console: Console) -> None:
    """The table, what failed and where its logs lie, and how to go on."""
    with _told(f"the table is not written; try: {command('sweep', 'table', sweep.path)}"):
        table = reader.read(sweep)
        write_csv(table)
        _print_table(table, write_page(table), console)
    failed = [point for point in sweep.points if sweep.status(point) == "failed"]
    unfinished = sum(sweep.status(point) != "finished" for point in sweep.points)
    if failed:
        print(f"\n{len(failed)} of {len(sweep.points)} points failed:", file=sys.stderr)
    for point in failed:
        reason = _reason(sweep.ends[point.name].text)
        logs = point.path / "logs"
        where = f" Logs: {short(logs)}" if logs.exists() else ""
        print(f"  {point.name}: {reason}{where}", file=sys.stderr)
    if unfinished:
        print(
            f"Not finished: {unfinished} of {counted(len(sweep.points), 'point')}; what is done is "
            f"kept. Go on with: {command('sweep', 'resume', sweep.path)}",
            file=sys.stderr,
        )


def _print_table(table: Table, page: Path, console: Console) -> None:
    if console.is_terminal:
        console.print(terminal(table, console.width))
    else:  # a file or a pipe has no width
        Console(width=_UNBOUNDED).print(terminal(table, None))
    for text in table.notes:
        console.print(Text(text, "dim"))
    _say(console, f"{short(page)} shows it with curves; table.csv beside it holds all numbers.")


@contextmanager
def _told(consequence: str) -> Iterator[None]:
    """Tells of an error in what the sweep does not need, and goes on."""
    try:
        yield
    except Exception as error:
        print(f"{type(error).__name__}: {error}; {consequence}", file=sys.stderr)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
