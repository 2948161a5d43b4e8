"""A plan as text: coloured and wrapped in a terminal, plain lines in a pipe."""

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...analysis.terminal import print_line, print_table, suited
from ...config.schema import Device, Recompute
from .memory import GB, host_memory, state_words
from .planned import Plan, assumptions, layout
from .search import Candidate
from .units import at_least, number, seconds, size

_FAINT = "bright_black"


def show(found: Plan, console: Console | None = None) -> None:
    """Prints a plan."""
    console = suited(console)
    config = found.config
    ranks = config.parallel.nodes * config.parallel.gpus_per_node
    print_line(
        console,
        Text.assemble(
            (config.model.name, "bold"),
            f" on {config.parallel.nodes} x {config.parallel.gpus_per_node} ranks: ",
            (layout(config), "bold"),
        ),
    )
    print_line(
        console,
        Text(
            f"{number(found.total)} parameters, {number(found.active)} of them met by a token, "
            "counted in the trainer's own model",
            style=_FAINT,
        ),
    )
    _memory(console, found)
    _heading(console, f"Fullest rank: stage {found.fullest.stage + 1}")
    fullest = found.fullest
    _rows(
        console,
        [
            *((part.name, size(part.bytes), part.what) for part in fullest.parts),
            ("together", size(fullest.bytes), ""),
        ],
    )
    _heading(console, "Optimizer state")
    most = max(found.ranks, key=lambda rank: rank.state.bytes)
    where = "on disk" if config.optim.state_on_disk else "in memory"
    _rows(
        console,
        [
            ("all", size(found.state_bytes), f"a parameter takes {state_words(config)}"),
            ("a rank", size(found.state_bytes / ranks), f"split evenly over {ranks}, on average"),
            (
                "heaviest",
                size(most.state.bytes),
                f"a rank of stage {most.stage + 1}, {where}",
            ),
        ],
    )
    _heading(console, "A trainer's node")
    _rows(console, _node(found))
    _heading(console, "An engine's GPU" if config.engine.device is Device.cuda else "An engine")
    _rows(console, _engine(found))
    _heading(console, "A step, if every sample fills its session budget")
    _rows(console, _step(found))
    _heading(console, "A weight update")
    _rows(
        console,
        [
            (one.transport, size(one.bytes), f"{at_least(one.floor_s)}: {one.how}")
            for one in found.updates
        ],
    )
    _heading(console, "Assumed")
    for sentence in assumptions(config):
        print_line(console, Text(sentence, style=_FAINT), 2)
    console.print()
    if found.problems:
        print_line(
            console, Text(f"It cannot run as it is: {len(found.problems)} found.", "bold red")
        )
        for problem in found.problems:
            print_line(console, Text(f"- {problem}"), 2)
    else:
        print_line(console, Text("It fits.", style="bold green"))


def show_search(
    found: list[Candidate], always: list[str], ranks: str, console: Console | None = None
) -> None:
    """Prints the layouts that fit, best first, then why each other does not. `always`: what stands
    against all of them."""
    console = suited(console)
    for problem in always:
        print_line(console, Text.assemble(("Any layout: ", "bold red"), problem))
    fitting = [one for one in found if one.problem is None]
    print_line(
        console, Text(f"{len(fitting)} of {len(found)} layouts of {ranks} fit", style="bold")
    )
    if fitting:
        table = _table()
        table.add_column("layout", style="bold", no_wrap=True)
        for name in ("step at least", "fullest rank", "head-room", "Adam a rank"):
            table.add_column(name, justify="right")
        for one in fitting:
            table.add_row(
                one.name + (" *" if one.current else ""),
                seconds(one.floor_s),
                size(one.bytes),
                "unknown" if one.room is None else f"{one.room:.0%}",
                size(one.state_bytes) + (" disk" if one.on_disk else ""),
            )
        print_table(console, table, 2)
        if any(one.current for one in fitting):
            print_line(console, Text("* as configured", style=_FAINT), 2)
    others = [one for one in found if one.problem is not None]
    if others:
        _heading(console, f"{len(others)} do not fit")
        for one in others:
            text = Text.assemble((one.name, "bold"), f"  {one.problem}")
            text.overflow = "ellipsis"
            text.no_wrap = True
            print_line(console, text, 2)


def _memory(console: Console, found: Plan) -> None:
    known = found.config.cluster.hardware.gpu_memory_gb
    on_gpu = found.config.parallel.device is Device.cuda and known is not None
    unit, each = ("GB", 1e9) if found.fullest.bytes >= 1e9 else ("MB", 1e6)
    _heading(
        console, f"Memory of a rank, {unit}", f"of {known:g} on its GPU" if on_gpu and known else ""
    )
    table = _table()
    for name in ("stage", "layers", "params", *(part.name for part in found.ranks[0].parts)):
        table.add_column(name.removesuffix(" state"), justify="right", no_wrap=True)
    table.add_column("together", justify="right", style="bold")
    if on_gpu:
        table.add_column("free", justify="right")
    for rank in found.ranks:
        cells = [str(rank.stage + 1), str(rank.layers), number(rank.parameters.held)]
        cells += [f"{count / each:,.1f}" for count in (*(p.bytes for p in rank.parts), rank.bytes)]
        free = (known or 0) * GB - rank.bytes
        style = "green" if free >= 0 else "bold red"
        table.add_row(*cells, *([Text(f"{free / each:,.1f}", style=style)] if on_gpu else ()))
    print_table(console, table, 2)


def _node(found: Plan) -> Iterable[tuple[str, str, str]]:
    hardware, here = found.config.cluster.hardware, host_memory(found.config)
    if found.config.optim.state_on_disk:
        room = "" if hardware.disk_gb is None else f"of {hardware.disk_gb:,.0f} GB: "
        yield "disk", size(found.disk_bytes), f"{room}its ranks' optimizer state, twice"
    if found.host_bytes:
        room = "" if here is None else f"of {size(here)}: "
        yield "memory", size(found.host_bytes), f"{room}its ranks, beside GPUs' memory"
    keep = found.config.checkpoint.keep_last + 1
    yield (
        "checkpoint",
        size(found.checkpoint_bytes),
        f"each, on the disk of runs_dir, {keep} at one time",
    )


def _engine(found: Plan) -> Iterable[tuple[str, str, str]]:
    engine, config = found.engine, found.config
    yield "weights", size(engine.weights), f"{config.engine.dtype}, on each rank"
    yield "KV cache", f"{engine.token_bytes:,} B", f"a token on each rank: {engine.token_words}"
    if engine.kv_tokens is None or engine.kv_bytes is None:
        yield "room", "unknown", "cluster.hardware.gpu_memory_gb or mem-fraction-static is not set"
        return
    whole = engine.kv_tokens / config.rollout.max_session_tokens
    yield (
        "room",
        f"{number(engine.kv_tokens)} tokens",
        f"{size(engine.kv_bytes)}: {whole:,.1f} sessions of the whole budget a rank, "
        f"{found.kv_sessions or 0:,.0f} in all engines for "
        f"{config.rollout.max_concurrent_samples} samples at one time",
    )


def _step(found: Plan) -> Iterable[tuple[str, str, str]]:
    step = found.step
    yield "tokens", number(step.tokens), ""
    again = " and recomputed" * (found.config.parallel.recompute is Recompute.full)
    yield "operations", f"{step.flops:.3g}", f"of all ranks, forward, backward{again}"
    yield "arithmetic", seconds(step.arithmetic_s), "at peak, with the pipeline's fill and drain"
    yield (
        "communication",
        seconds(step.communication_s),
        f"{size(step.fabric_bytes)} to each rank, hidden behind arithmetic",
    )
    yield (
        "optimizer",
        seconds(step.state_s),
        "its state from disk and back" if found.config.optim.state_on_disk else "in memory",
    )
    yield "together", at_least(step.floor_s), "the longer of the first two, and this"


def _table() -> Table:
    return Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=_FAINT)


def _heading(console: Console, title: str, detail: str = "") -> None:
    text = Text(f"\n{title}", style="bold")
    if detail:
        text.append(f"  {detail}", style=f"not bold {_FAINT}")
    console.print(text)


def _rows(console: Console, rows: Iterable[tuple[str, str, str]]) -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True, style="cyan")
    grid.add_column(style=_FAINT)
    for name, value, what in rows:
        grid.add_row(Text(name), Text(value), Text(what))
    print_table(console, grid, 2)
