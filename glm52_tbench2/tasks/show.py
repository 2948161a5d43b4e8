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
    table = Table(title=name, caption=about)
    for index, column in enumerate(header):
        table.add_column(column, justify="right" if index > 3 else "left", no_wrap=index == 0)
    for row in rows:
        table.add_row(*row)
    console.print(table)


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
