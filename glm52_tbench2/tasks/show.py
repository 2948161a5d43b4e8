"""A task set as a table."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from .suite import Task
from .tbench2 import KnownTask


def show(tasks: Sequence[Task | KnownTask], title: str, console: Console | None = None) -> None:
    """Prints one line a task; tab-separated without a frame where the output is no terminal."""
    console = console or Console()
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
    table = Table(title=title)
    for index, name in enumerate(header):
        table.add_column(name, justify="right" if index > 3 else "left", no_wrap=index == 0)
    for row in rows:
        table.add_row(*row)
    console.print(table)
