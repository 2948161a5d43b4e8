"""Knobs as a table: name, value in a composition, meaning."""

import difflib
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, get_type_hints

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .compose import compose, leaves
from .docs import knob_docs
from .errors import UserError
from .schema import RunConfig


def show_knobs(word: str, overrides: list[str], console: Console | None = None) -> None:
    """Prints the knobs that start with `word`, else those that contain it, with their values in
    the composition of `overrides`: a table, or tab-separated lines where the output is no
    terminal. Raises UserError where there is none.
    """
    console, docs = console or Console(), knob_docs()
    names = [name for name in docs if name.startswith(word)] or [
        name for name in docs if word in name
    ]
    if not names:
        near = difflib.get_close_matches(word, docs, 1)
        meant = f"; did you mean {near[0]}?" if near else "; glm52 knobs lists all."
        raise UserError(f"There is no knob with '{word}' in its name{meant}")
    values, choices = leaves(compose(overrides)), _choices()
    rows = [
        (name, _plain(values[name]) if name in values else "", _told(docs[name], choices.get(name)))
        for name in names
    ]
    if not console.is_terminal:
        for row in rows:
            print(*row, sep="\t", file=console.file)
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("knob", no_wrap=True)
    table.add_column("value", no_wrap=True, max_width=16, style="cyan")
    table.add_column("meaning")
    for row in rows:
        table.add_row(*map(Text, row))  # a list's brackets would be read as markup
    console.print(table)


def _plain(value: Any) -> str:
    """A value in one line."""
    if isinstance(value, Enum):
        return str(value.value)
    if value is None or isinstance(value, bool):
        return yaml.safe_dump(value).split("\n")[0]
    if isinstance(value, list | dict):
        return yaml.safe_dump(value, default_flow_style=True, width=10**6).strip()
    return str(value).replace("\n", "\\n").replace("\t", "\\t")


def _told(doc: str, choices: list[str] | None) -> str:
    """The doc line, and the choices that it does not name itself."""
    if not choices or all(choice in doc for choice in choices):
        return doc
    return f"{doc} One of: {', '.join(choices)}."


def _choices() -> dict[str, list[str]]:
    """Dotted name -> the values of each knob that is a choice."""

    def walk(cls: type, prefix: str) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, kind in get_type_hints(cls).items():
            if is_dataclass(kind) and isinstance(kind, type):
                found |= walk(kind, f"{prefix}{name}.")
            elif isinstance(kind, type) and issubclass(kind, Enum):
                found[prefix + name] = [str(one.value) for one in kind]
        return found

    return walk(RunConfig, "")
