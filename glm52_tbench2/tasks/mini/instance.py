"""One generated terminal task, and the registry of the families that generate them."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random


@dataclass(frozen=True, kw_only=True)
class Draft:
    """What a family decides about one task."""

    params: tuple[str, ...]
    """What makes this task itself within its family: the names and values its answer depends on."""
    instruction: str
    """The task, as a person would ask for it."""
    files: dict[str, str] = field(default_factory=dict)
    """Text files the task starts with, by path below the working folder /app."""
    dockerfile: list[str] = field(default_factory=list)
    """Dockerfile lines after the files are in place: what git cannot store (modes, links, ...)."""
    turns: list[str]
    """A right solution, one command a turn; later ones may use what earlier ones print."""
    wrong: list[str]
    """A plausible wrong attempt, one command a turn."""
    check: str
    """Shell commands, run in /app with `set -e`, that all succeed when the task is done."""


@dataclass(frozen=True, kw_only=True)
class Instance(Draft):
    """A task of a family."""

    family: str
    difficulty: str
    """easy: one command; medium: two; hard: three or four."""
    category: str


def instance_key(instance: Instance) -> str:
    """Names the task apart from its wording and its filler: equal keys mean the same task."""
    text = "\n".join((instance.family, *instance.params))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


FAMILIES: dict[str, Callable[[Random], Instance]] = {}
"""Every family by name; `FAMILIES[name](rng)` samples a task, the same one for the same rng."""


def family(
    name: str, difficulty: str, category: str
) -> Callable[[Callable[[Random], Draft]], Callable[[Random], Instance]]:
    """Registers a function that drafts tasks as the family `name`."""

    def register(draft: Callable[[Random], Draft]) -> Callable[[Random], Instance]:
        def sample(rng: Random) -> Instance:
            fields = vars(draft(rng))
            return Instance(family=name, difficulty=difficulty, category=category, **fields)

        FAMILIES[name] = sample
        return sample

    return register
