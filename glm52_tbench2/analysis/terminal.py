"""Text for a terminal, coloured and wrapped, and for a pipe, plain lines."""

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_PIPED_WIDTH = 500
"""Lines in a pipe are never wrapped."""


class _Plain(Console):
    def on_broken_pipe(self) -> None:
        """The command's to answer, which ends well: rich itself would exit with 1."""
        raise BrokenPipeError


def suited(console: Console | None) -> Console:
    """The console itself if it is a terminal, else one that writes plain lines in its place."""
    console = console or Console()
    if console.is_terminal:
        return console
    return _Plain(
        file=console.file, width=_PIPED_WIDTH, no_color=True, highlight=False, emoji=False
    )


def print_line(console: Console, text: Text, indent: int = 0) -> None:
    """A line; on a terminal what wraps stays indented."""
    if console.is_terminal:
        console.print(Padding(text, (0, 0, 0, indent), expand=False))
    else:
        console.print(Text(" " * indent) + text, soft_wrap=True)


def print_table(console: Console, table: Table, indent: int) -> None:
    """Without the blanks that pad a table's lines, which a pipe would carry."""
    padded = Padding(table, (0, 0, 0, indent), expand=False)
    if console.is_terminal:
        console.print(padded)
        return
    with console.capture() as capture:
        console.print(padded)
    for line in capture.get().splitlines():
        console.print(Text(line.rstrip()), soft_wrap=True)
