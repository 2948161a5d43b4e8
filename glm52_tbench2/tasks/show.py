"""A task set as a table."""

from rich.console import Console
from rich.table import Table

from .named import named_facts


def show(name: str, console: Console | None = None) -> None:
    """Prints one line a task of `name` (SUITE or SUITE/SET): a table, or tab-separated plain lines
    where the output is no terminal. Raises UserError for an unknown name.
    """
    console = console or Console()
    tasks = named_facts(name)
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
        for row in (header, *rows):
            print(*row, sep="\t", file=console.file)
        return
    table = Table(title=name)
    for index, name in enumerate(header):
        table.add_column(name, justify="right" if index > 3 else "left", no_wrap=index == 0)
    for row in rows:
        table.add_row(*row)
    console.print(table)
