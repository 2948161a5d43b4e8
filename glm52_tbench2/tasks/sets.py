"""Task sets: the manifests data/SUITE/sets/NAME.yaml, which say what is trained or held out."""

import hashlib
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import yaml

from ..config.errors import UserError
from ..config.once import fact
from ..config.paths import DATA
from .suite import Task, asked


@dataclass(frozen=True)
class TaskSet:
    name: str
    """As configs write it: SUITE/SET."""
    suite: str
    ids: tuple[str, ...]
    """Sorted."""
    doc: str
    held_out: bool = False
    """For evaluation: no other set of its suite may hold one of its tasks."""

    @property
    def sha256(self) -> str:
        """Identity of the set: a hash of its sorted ids, one a line; the name plays no part."""
        return hashlib.sha256("\n".join(self.ids).encode()).hexdigest()


def set_names(data: Path = DATA) -> list[str]:
    """Every task set there is, as SUITE/SET."""
    paths = data.glob("*/sets/*.yaml")
    return sorted(f"{path.parent.parent.name}/{path.stem}" for path in paths)


@fact
def load_set(name: str, data: Path = DATA) -> TaskSet:
    """Reads the task set `name` (SUITE/SET) from the folder `data`.

    Raises UserError for an unknown set and for a manifest that is not a sorted list of ids.
    """
    known = set_names(data)
    if name not in known:
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"write one of {', '.join(known)}."
        raise UserError(f"There is no task set {name}; {hint}")
    suite, stem = name.split("/")
    path = data / suite / "sets" / f"{stem}.yaml"
    try:
        fields = yaml.safe_load(path.read_text())
        ids = fields["tasks"]
        well_formed = (
            fields["suite"] == suite
            and isinstance(ids, list)
            and bool(ids)
            and all(isinstance(one, str) for one in ids)
            and isinstance(fields.get("held_out", False), bool)
        )
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError):
        well_formed = False
    if not well_formed:
        raise UserError(
            f"{path} is not a task set; write `suite: {suite}`, `doc: what it is for`, `tasks:` "
            "with a list of task ids and, where they are held out, `held_out: true`."
        )
    if twice := sorted({one for one in ids if ids.count(one) > 1}):
        raise UserError(f"{path} names {', '.join(twice)} more than once; write each task once.")
    if ids != sorted(ids):
        raise UserError(f"The task ids in {path} must be sorted; sort them.")
    doc, held_out = str(fields.get("doc", "")), bool(fields.get("held_out", False))
    return TaskSet(name, suite, tuple(ids), doc, held_out)


def find_set(name: str) -> TaskSet:
    """The set `name`, as SUITE/SET or as SET where one suite alone has it. Raises UserError."""
    found = [known for known in set_names() if known.rpartition("/")[2] == name]
    if len(found) > 1:
        raise UserError(f"{name} is a set of several suites; write {' or '.join(found)}.")
    return load_set(found[0] if found else name)


def held_out_sets(suite: str, data: Path = DATA) -> list[TaskSet]:
    """The sets of a suite that are held out. Raises UserError for a broken manifest."""
    names = [name for name in set_names(data) if name.startswith(f"{suite}/")]
    return [one for name in names if (one := load_set(name, data)).held_out]


def check_disjoint(train: TaskSet, held_out: TaskSet) -> None:
    """Raises UserError when the two sets share a task, or come from different suites."""
    if train.suite != held_out.suite:
        raise UserError(
            f"data.train={train.name} and data.eval={held_out.name} come from different suites; "
            "choose both from one."
        )
    shared = sorted(set(train.ids) & set(held_out.ids))
    if shared:
        raise UserError(
            f"data.train={train.name} and data.eval={held_out.name} share {len(shared)} tasks "
            f"({', '.join(shared[:3])}{', ...' if len(shared) > 3 else ''}); "
            "choose sets that have none in common."
        )


def check_leakage(train: Iterable[Task], held_out: Iterable[Task]) -> None:
    """Raises UserError when a task trained on is a held-out one under another id."""
    known = {asked(task): task.id for task in held_out}
    for task in train:
        if twin := known.get(asked(task)):
            raise UserError(
                f"The task {task.id} of data.train is the held-out task {twin} under another name; "
                "leave one of them out."
            )


def render_set(suite: str, doc: str, ids: Iterable[str], held_out: bool = False) -> str:
    """The text of a manifest."""
    lines = "".join(f"  - {task_id}\n" for task_id in sorted(ids))
    body = textwrap.indent(textwrap.fill(doc, 96), "  ")
    mark = "held_out: true\n" if held_out else ""
    return f"suite: {suite}\ndoc: >-\n{body}\n{mark}tasks:\n{lines}"


def render_sets(
    suite: str,
    train: Sequence[str],
    held_out: Sequence[str],
    names: tuple[str, str, str],
    rule: str,
) -> dict[str, str]:
    """The three manifests of a suite, by file name: train, its first eight tasks, held out."""
    full, small, evaluation = names
    return {
        f"{full}.yaml": render_set(
            suite,
            f"The {len(train)} tasks trained on: all that {evaluation} does not hold out.",
            train,
        ),
        f"{small}.yaml": render_set(suite, f"The first 8 tasks of {full}.", sorted(train)[:8]),
        f"{evaluation}.yaml": render_set(
            suite, f"The {len(held_out)} tasks held out: {rule}", held_out, held_out=True
        ),
    }
