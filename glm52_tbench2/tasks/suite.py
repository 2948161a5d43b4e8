"""Terminal tasks on disk, in Terminal-Bench-2's layout.

TASK/task.toml, instruction.md, environment/Dockerfile (and what it copies), solution/solve.sh,
tests/test.sh, which writes 1 or 0 to /logs/verifier/reward.txt; its exit status means nothing.
"""

import hashlib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from ..config.errors import UserError

T = TypeVar("T")
REQUIRED = (
    "task.toml",
    "instruction.md",
    "environment/Dockerfile",
    "solution/solve.sh",
    "tests/test.sh",
)


@dataclass(frozen=True)
class Task:
    id: str
    path: Path
    """The task's folder."""
    instruction: str
    """What the policy is asked, without the file's last newline."""
    difficulty: str
    category: str
    family: str
    """Family of generated tasks; empty for written ones."""
    workdir: str
    """Working folder in the sandbox: the Dockerfile's last WORKDIR."""
    docker_image: str | None
    """Prebuilt image, if task.toml names one."""
    agent_timeout_s: float
    verifier_timeout_s: float
    cpus: float
    memory_mb: int
    storage_mb: int

    @property
    def environment(self) -> Path:
        """Folder with the Dockerfile, which is also its build context."""
        return self.path / "environment"

    @property
    def tests(self) -> Path:
        return self.path / "tests"

    @property
    def solution(self) -> str:
        """Text of the right solution."""
        return (self.path / "solution" / "solve.sh").read_text()

    @property
    def wrong(self) -> str | None:
        """Text of a plausible wrong attempt; None where the task has none."""
        path = self.path / "solution" / "wrong.sh"
        return path.read_text() if path.exists() else None


def load_task(path: Path) -> Task:
    """Reads the task in the folder `path`.

    Raises UserError for a missing file, for one that is not UTF-8 and for a task.toml that cannot
    be understood.
    """
    for name in REQUIRED:
        if not (path / name).is_file():
            raise UserError(f"The task {path.name} has no {name}; add {path / name}.")
    toml = path / "task.toml"
    try:
        fields = tomllib.loads(_text(toml))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{toml} is not valid TOML ({error}); correct it.") from error
    metadata = _table(toml, fields, "metadata")
    environment = _table(toml, fields, "environment")
    dockerfile = _text(path / "environment" / "Dockerfile")
    workdirs = re.findall(r"^\s*WORKDIR\s+(\S+)", dockerfile, re.MULTILINE | re.IGNORECASE)
    return Task(
        id=path.name,
        path=path,
        instruction=_text(path / "instruction.md").rstrip("\n"),
        difficulty=str(metadata.get("difficulty", "unknown")),
        category=str(metadata.get("category", "")),
        family=str(metadata.get("family", "")),
        workdir=workdirs[-1] if workdirs else "/app",
        docker_image=environment.get("docker_image"),
        agent_timeout_s=_number(toml, fields, "agent", "timeout_sec"),
        verifier_timeout_s=_number(toml, fields, "verifier", "timeout_sec"),
        cpus=_number(toml, fields, "environment", "cpus", default=1),
        memory_mb=_size_mb(toml, environment, "memory"),
        storage_mb=_size_mb(toml, environment, "storage"),
    )


def load_suite(folder: Path) -> dict[str, Task]:
    """Reads every task below `folder`, by id, in the order of ids.

    A sub-folder is a task when it holds a task.toml or an instruction.md.
    Raises UserError when there is none, and what :func:`load_task` raises.
    """
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    tasks = {
        path.name: load_task(path)
        for path in paths
        if (path / "task.toml").exists() or (path / "instruction.md").exists()
    }
    if not tasks:
        raise UserError(
            f"There is no task in {folder}; the folder of a suite (data.tasks_dir, --tasks-dir) "
            "holds one sub-folder a task, each with a task.toml."
        )
    return tasks


def asked(task: Task) -> str:
    """A hash of what the task asks and how it judges: instruction, environment and tests."""
    digest = hashlib.sha256(task.instruction.encode())
    for folder in (task.environment, task.tests):
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            digest.update(str(path.relative_to(task.path)).encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def select(suite: Mapping[str, T], ids: Iterable[str]) -> list[T]:
    """The tasks with these ids, in their order. Raises UserError for an id the suite lacks."""
    tasks = []
    for task_id in ids:
        if task_id not in suite:
            close = get_close_matches(task_id, suite, n=1)
            hint = f"did you mean {close[0]}?" if close else "correct the id or data.tasks_dir."
            raise UserError(f"There is no task {task_id} among the suite's {len(suite)}; {hint}")
        tasks.append(suite[task_id])
    return tasks


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 ({error}); save it as that.") from error


def _table(toml: Path, fields: dict[str, Any], name: str) -> dict[str, Any]:
    table = fields.get(name, {})
    if not isinstance(table, dict):
        raise UserError(f"{name} in {toml} must be a table; write [{name}] above its keys.")
    return table


def _number(
    toml: Path, fields: dict[str, Any], table: str, key: str, default: float | None = None
) -> float:
    value = _table(toml, fields, table).get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise UserError(
            f"{toml} needs a number above 0 for {key} in [{table}], not {value!r}."
            if value is not None
            else f"{toml} lacks {key} in [{table}]; write a number above 0."
        )
    return float(value)


def _size_mb(toml: Path, environment: dict[str, Any], name: str) -> int:
    """Reads `memory_mb = 2048` (schema 1.1) or `memory = "2G"` (older), as MiB."""
    value = environment.get(f"{name}_mb")
    if value is None and (older := environment.get(name)) is not None:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([MGT])(?:i?B|i)?", str(older), re.IGNORECASE)
        if match:
            value = int(float(match[1]) * 1024 ** "MGT".index(match[2].upper()))
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise UserError(
            f'{toml} needs {name}_mb = 2048 (or the older {name} = "2G") in [environment].'
        )
    return value
