"""Prompt rows: a task set as a file that other training tools read, one JSON object a task.

    {"prompt": [{"role": "system", "content": ...}], "metadata": {"task_id": ...}}

The instruction is not in it: the environment gives it at the start of an episode.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from ..config.errors import UserError
from ..config.files import atomic_write_bytes
from .sets import TaskSet, check_disjoint, check_leakage, held_out_sets
from .suite import load_suite, select


def write_rows(train: TaskSet, tasks_dir: Path, system_prompt: str, out: Path) -> list[Path]:
    """Writes `train` and the held-out sets of its suite into the folder `out`; returns the files.

    Raises UserError, before anything is written, for an id without a task in `tasks_dir`, and
    for a task that is both trained on and held out.
    """
    if not tasks_dir.is_dir():
        raise UserError(f"There is no folder {tasks_dir}; write --tasks-dir FOLDER.")
    suite = load_suite(tasks_dir)
    if missing := [task_id for task_id in train.ids if task_id not in suite]:
        raise UserError(
            f"{tasks_dir} has no task.toml for {len(missing)} of the {len(train.ids)} tasks of "
            f"{train.name} ({', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}); "
            "write --tasks-dir FOLDER with all of them."
        )
    chosen = select(suite, train.ids)
    others = [one for one in held_out_sets(train.suite) if one != train]
    for held_out in others:
        check_disjoint(train, held_out)
        check_leakage(chosen, select(suite, held_out.ids))
    out.mkdir(parents=True, exist_ok=True)
    return [_write(one, system_prompt, out) for one in (train, *others)]


def rows_name(task_set: TaskSet) -> str:
    """File name of a set's rows; a held-out set goes without its size."""
    stem = task_set.name.replace("/", "_")
    return f"{stem.rstrip('0123456789') if task_set.held_out else stem}.jsonl"


def _write(task_set: TaskSet, system_prompt: str, out: Path) -> Path:
    prompt: Sequence[dict[str, str]] = [{"role": "system", "content": system_prompt}]
    lines = (
        json.dumps({"prompt": prompt, "metadata": {"task_id": task_id}}, ensure_ascii=False)
        for task_id in task_set.ids
    )
    path = out / rows_name(task_set)
    atomic_write_bytes(path, "".join(f"{line}\n" for line in lines).encode())
    return path
