"""A task set as a table."""

from rich.console import Console
from rich.table import Table

from .named import full_name, named_facts
from .sets import check_disjoint, held_out_sets, load_set


def show(name: str, console: Console | None = None) -> None:
    """Prints one line a task of `name` (SUITE, SUITE/SET or SET): a table, or tab-separated plain
    lines where the output is no terminal. Raises UserError for an unknown name.
    """
    console, name = console or Console(), full_name(name)
    tasks = named_facts(name)
    about = _about(name, len(tasks))
    header = (
        "task",
        "difficulty",
        "category",
        "family",
        "agent s",
        "verifier s",
        "MiB",
        "disk MiB",
    )
    rows = [
        (
            task.id,
            task.difficulty,
            task.category,
            task.family,
            f"{task.agent_timeout_s:g}",
            f"{task.verifier_timeout_s:g}",
            str(task.memory_mb),
            str(task.storage_mb),
        )
        for task in tasks
    ]
    if not console.is_terminal:
        print(f"# {about}", file=console.file)
        for row in (header, *rows):
            print(*row, sep="\t", file=console.file)
        return
    # What all tasks share is said once, or a narrow terminal has no room for the rest.
    columns = list(zip(*rows, strict=True))
    shared = [i for i in range(1, len(header)) if len(set(columns[i])) == 1]
    table = Table(title=name, caption=about, box=None, pad_edge=False)
    kept = [i for i in range(len(header)) if i not in shared]
    for i in kept:
        # Where room is short the category gives way.
        table.add_column(
            header[i].replace(" ", "\n"),
            justify="right" if i > 3 else "left",
            no_wrap=header[i] != "category",
        )
    for row in rows:
        table.add_row(*(row[i] for i in kept))
    console.print(table)
    facts = [f"{header[i]} {columns[i][0]}" for i in shared if columns[i][0]]
    if facts:
        console.print(f"every task: {', '.join(facts)}", style="dim", highlight=False)


def _about(name: str, count: int) -> str:
    """What a set is known by, and that nothing of it is trained on and held out at once."""
    if "/" not in name:
        return f"{count} tasks"
    task_set = load_set(name)
    others = [one for one in held_out_sets(task_set.suite) if one != task_set]
    for other in others:
        check_disjoint(task_set, other)
    kind = "held out" if task_set.held_out else "none in " + ", ".join(one.name for one in others)
    return f"{count} tasks, {kind}, sha256 {task_set.sha256[:16]}"
