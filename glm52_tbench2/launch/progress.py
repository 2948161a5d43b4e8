"""How a run goes, for a person: a live view on a terminal, else one line a gate and a step."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .roles import RoleProcess, State
from .run_numbers import RunNumbers
from .supervisor import Watcher

_REFRESH_S = 1.9
_EVENTS_SHOWN = 3
_LABEL_WIDTH = 12
_PHASES = {
    "start": "starting",
    "wait": "training",
    "eval": "evaluating",
    "generate": "generating",
    "done": "finishing",
}
_BLOCKS = "▁▂▃▄▅▆▇█"


@contextmanager
def shown(run_dir: Path, steps: int, console: Console) -> Iterator[Watcher]:
    """A watcher that shows the run on `console`."""
    numbers = RunNumbers(run_dir, steps)
    if not console.is_terminal:
        yield PlainProgress(numbers, console)
        return
    with LiveProgress(numbers, console, run_dir.name) as live:
        yield live


class Silent:
    """Shows nothing: of a job's nodes, only the head's supervisor tells how the run goes."""

    def event(self, text: str) -> None:
        """Nothing."""

    def tick(self, roles: Sequence[RoleProcess]) -> None:
        """Nothing."""


class PlainProgress:
    """One line for each gate passed, evaluation, trained step and event."""

    def __init__(self, numbers: RunNumbers, console: Console) -> None:
        self._numbers, self._console = numbers, console
        self._told: dict[str, float] = {}
        self._step = numbers.trained
        self._paused = ""

    def event(self, text: str) -> None:
        """Prints it."""
        self._print(text)

    def tick(self, roles: Sequence[RoleProcess]) -> None:
        """Prints what is new."""
        for role in roles:
            name = role.spec.name
            if (
                _gated(role)
                and role.ready_s is not None
                and self._told.get(name) != role.started_at
            ):
                self._told[name] = role.started_at
                self._print(f"{name} ready after {role.ready_s:.0f} s")
        before, self._paused = self._paused, self._numbers.paused
        if self._paused and not before:
            self._print(f"paused; {self._paused}")
        for source, step in self._numbers.read_new():
            if source == "eval" and self._numbers.steps:
                self._print(held_out_line(self._numbers, step))
            elif source == "trainer" and step > self._step:
                self._step = step
                self._print(step_line(self._numbers, step))
            for text in self._numbers.alarms(source, step):
                self._print(text)

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class LiveProgress:
    """A view that is redrawn in place about once a second."""

    def __init__(self, numbers: RunNumbers, console: Console, title: str) -> None:
        self._numbers, self._console, self._title = numbers, console, title
        self._began = time.monotonic()
        self._drawn = 0.0
        self._roles: Sequence[RoleProcess] = ()
        self._events: list[str] = []
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> "LiveProgress":
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._draw()
        self._live.stop()

    def event(self, text: str) -> None:
        """Keeps the last few below the numbers; all are in logs/supervisor.log."""
        self._events = [*self._events, f"{time.strftime('%H:%M')}  {text}"][-_EVENTS_SHOWN:]

    def tick(self, roles: Sequence[RoleProcess]) -> None:
        """Draws, unless that was done just now: drawing is most of what a supervisor costs."""
        self._roles = roles
        if time.monotonic() - self._drawn > _REFRESH_S:
            self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        for source, step in self._numbers.read_new():
            for text in self._numbers.alarms(source, step):
                self.event(text)
        elapsed = self._drawn - self._began
        self._live.update(view(self._numbers, self._roles, self._events, self._title, elapsed))
        self._live.refresh()


def view(
    numbers: RunNumbers,
    roles: Sequence[RoleProcess],
    events: Sequence[str],
    title: str,
    elapsed_s: float,
) -> RenderableType:
    """The whole view."""
    head = Table.grid(expand=True)
    head.add_column(overflow="ellipsis", no_wrap=True)
    head.add_column(justify="right", no_wrap=True)
    head.add_row(Text(title, "bold"), Text(duration(elapsed_s), "dim"))
    starting = any(role.state is State.starting for role in roles)
    blocks: list[RenderableType] = [Text(), head, Text(), _bars(numbers, starting, elapsed_s)]
    if numbers.metrics:
        blocks += [Text(), _figures(numbers)]
    blocks += [Text(), _roles(roles), *(Text(event, "yellow") for event in events)]
    if numbers.paused:
        blocks.append(Text(f"paused; {numbers.paused}", "yellow"))
    body = Table.grid(padding=(0, 1), expand=True)
    body.add_row("", Group(*blocks), "")
    return body


def _bars(numbers: RunNumbers, starting: bool, elapsed_s: float) -> Table:
    """How far the run is; while a role is `starting` the others wait, whatever they call it."""
    rows = Table.grid(padding=(0, 2), expand=True)
    rows.add_column(width=_LABEL_WIDTH, no_wrap=True)
    rows.add_column(ratio=1)
    rows.add_column(min_width=20, no_wrap=True)
    finished, left = numbers.finished, numbers.seconds_left()
    end = f"finished in {duration(elapsed_s)}" if finished else ""
    if left is not None and not finished:
        end = f"{duration(left)} left"
    if numbers.steps:
        rows.add_row(
            Text(f"step {numbers.trained}/{numbers.steps}"),
            ProgressBar(numbers.steps, numbers.trained, style="dim", complete_style="green"),
            Text(end, "green" if finished else "dim"),
        )
    elif finished:
        rows.add_row("", "", Text(end, "green"))
    phase = None if finished else numbers.phase()
    if phase is not None and phase.total:
        rows.add_row(
            Text(_PHASES.get(phase.name, phase.name), "dim"),
            ProgressBar(phase.total, phase.done, style="dim", complete_style="cyan"),
            Text(f"{phase.done} of {phase.total} episodes", "dim"),
        )
    elif phase is not None and not starting:
        rows.add_row(Text(_PHASES.get(phase.name, phase.name), "dim"))
    return rows


def _figures(numbers: RunNumbers) -> Table:
    rows = Table.grid(padding=(0, 2))
    rows.add_column(width=_LABEL_WIDTH, style="dim", no_wrap=True)
    rows.add_column(no_wrap=True)
    rows.add_column(no_wrap=True, style="dim")
    rewards = numbers.series("driver", "rollout/reward_mean")
    if rewards:
        rows.add_row("reward", f"{rewards[-1][1]:.2f}", sparkline([v for _, v in rewards]))
    held_out = numbers.series("eval", "eval/reward_mean")
    if held_out:
        values = " → ".join(f"{value:.2f}" for _, value in held_out[-4:])
        rows.add_row("held out", values, f"after step {held_out[-1][0]}")
    for label, source, name, form in (*_FIGURES, *_STREAM_FIGURES):
        value = numbers.latest(source, name)
        if value is not None:
            rows.add_row(label, form.format(value))
    return rows


_FIGURES = (
    ("truncated", "driver", "rollout/truncated_share", "{:.0%}"),
    ("tokens/s", "driver", "rollout/tokens_per_s", "{:.0f}"),
    ("mismatch KL", "trainer", "trainer/train_rollout_kl", "{:.2g}"),
)


# Told in rollout.mode=fully_async alone.
_STREAM_FIGURES = (
    ("slots busy", "driver", "rollout/slots_busy_share", "{:.0%}"),
    ("waiting", "driver", "rollout/groups_waiting", "{:.0f} finished groups"),
)


def _roles(roles: Sequence[RoleProcess]) -> RenderableType:
    shown: dict[str, list[RoleProcess]] = {}
    for role in roles:
        shown.setdefault(role.spec.role, []).append(role)
    if any(role.state is State.starting for role in roles):
        rows = Table.grid(padding=(0, 2))
        rows.add_column(width=_LABEL_WIDTH, no_wrap=True)
        for name, members in shown.items():
            rows.add_row(Text(name), _standing(members))
        return rows
    parts = [Text.assemble(_mark(members), f" {name}") for name, members in shown.items()]
    return Columns(parts, padding=(0, 3))


_MARKS = {
    State.starting: ("○", "yellow"),
    State.ready: ("●", "green"),
    State.finished: ("✓", "green"),
    State.failed: ("✗", "red"),
    State.stopped: ("○", "dim"),
}


def _mark(members: Sequence[RoleProcess]) -> tuple[str, str]:
    """The mark of the member that is worst off."""
    order = (State.failed, State.starting, State.stopped, State.ready, State.finished)
    return _MARKS[min((role.state for role in members), key=order.index)]


def _standing(members: Sequence[RoleProcess]) -> Text:
    waiting = [role for role in members if role.state is State.starting]
    if waiting:
        seconds = time.monotonic() - min(role.started_at for role in waiting)
        count = f"{len(members) - len(waiting)} of {len(members)} ready, " * (len(members) > 1)
        again = "again " * any(role.restarts for role in waiting)
        return Text.assemble(
            ("○", "yellow"), f"  {count}starting {again}", (f"{seconds:.0f} s", "dim")
        )
    ready = [role.ready_s for role in members if role.ready_s is not None]
    state = members[0].state.value if _gated(members[0]) else "running"
    after = f"after {max(ready):.0f} s" if ready and _gated(members[0]) else ""
    return Text.assemble(_mark(members), f"  {state} ", (after, "dim"))


def _gated(role: RoleProcess) -> bool:
    return role.spec.health is not None or role.spec.ready_key is not None


def step_line(numbers: RunNumbers, step: int) -> str:
    """A trained step in one line."""
    parts = [f"step {step} of {numbers.steps}:"]
    figures = (("reward", "driver", "rollout/reward_mean", "{:.2f}"), *_FIGURES)
    for label, source, name, form in figures:
        value = numbers.latest(source, name, step)
        if value is not None:
            parts.append(f"{label} {form.format(value)},")
    left = numbers.seconds_left()
    parts.append("" if left is None else f"{duration(left)} left")
    return " ".join(filter(None, parts)).rstrip(",:")


def held_out_line(numbers: RunNumbers, step: int) -> str:
    """An evaluation in one line."""
    mean = numbers.latest("eval", "eval/reward_mean", step)
    told = "no episode was scored" if mean is None else f"reward {mean:.2f}"
    return f"held out after step {step}: {told}"


def duration(seconds: float) -> str:
    """As 0:09, 12:30 or 3:02:10."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def sparkline(shares: Sequence[float], width: int = 40) -> str:
    """The last values, each between 0 and 1, as blocks."""
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round(min(max(share, 0), 1) * top)] for share in shares[-width:])
