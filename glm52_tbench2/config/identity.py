"""What makes two runs the same run: config, code, tasks, starting weights, packages."""

import hashlib
import json
import subprocess
from dataclasses import asdict, dataclass, field
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .compose import leaves
from .errors import UserError
from .files import atomic_write_bytes
from .paths import ROOT, resolve
from .schema import RunConfig

IDENTITY_FILE = "identity.json"

EXCLUDED = (
    "name",
    "runs_dir",
    "tracking.wandb",
    "tracking.project",
    "tracking.entity",
    "checkpoint.every",
    "checkpoint.keep_last",
    "engine.weights_dir",
    "cluster.fabric",
    "cluster.max_restarts",
    "cluster.deadlines.env",
    "cluster.deadlines.engine",
    "cluster.deadlines.driver",
    "cluster.deadlines.trainer",
)
"""Knobs that say where things lie or how they are logged, and decide no result."""

PACKAGES = ("torch", "megatron-core", "sglang", "transformers", "tokenizers", "openenv", "numpy")
"""Packages whose version decides results."""

_WHOLE_FILE_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Identity:
    """The facts behind a run's hash, and the hash."""

    config: dict[str, Any]
    """Dotted knob -> value, without the excluded ones."""
    code: dict[str, str]
    """revision, and changes: the hash of uncommitted changes, "" when there are none."""
    task_sets: dict[str, str]
    """Set name -> sha256 over its tasks."""
    model: str
    """sha256 over the starting weights' files: contents up to 16 MiB, name and size above."""
    packages: dict[str, str]
    hash: str = field(default="", compare=False)

    def differences(self, other: "Identity") -> list[str]:
        """One line for each fact that differs, "name: mine -> other's"."""
        mine, theirs = _facts(self), _facts(other)
        names = [*mine, *(name for name in theirs if name not in mine)]
        return [
            f"{name}: {mine.get(name, 'absent')} -> {theirs.get(name, 'absent')}"
            for name in names
            if mine.get(name) != theirs.get(name)
        ]


def identify(config: RunConfig, task_sets: dict[str, str]) -> Identity:
    """The identity of `config` run from this checkout. `task_sets`: set name -> sha256."""
    knobs = {
        name: value.name if isinstance(value, Enum) else value
        for name, value in leaves(config).items()
        if name not in EXCLUDED
    }
    facts = Identity(
        config=knobs,
        code=_code(),
        task_sets=task_sets,
        model=_folder_hash(resolve(config.model.path)),
        packages={name: _version(name) for name in PACKAGES},
    )
    content = json.dumps(asdict(facts), sort_keys=True).encode()
    return Identity(**{**asdict(facts), "hash": hashlib.sha256(content).hexdigest()[:16]})


def save_identity(identity: Identity, run_dir: Path, history: list[dict[str, Any]]) -> None:
    """Writes RUN/identity.json; `history` holds each resume that was allowed to differ."""
    content = {**asdict(identity), "history": history}
    atomic_write_bytes(run_dir / IDENTITY_FILE, json.dumps(content, indent=1).encode())


def load_identity(run_dir: Path) -> tuple[Identity, list[dict[str, Any]]]:
    """The identity a run was started with, and its history. Raises UserError."""
    path = run_dir / IDENTITY_FILE
    try:
        content = json.loads(path.read_text())
        history = content.pop("history")
        return Identity(**content), history
    except FileNotFoundError:
        raise UserError(f"{run_dir} is not a run folder: it has no {IDENTITY_FILE}.") from None
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}); restore it or start a new run.") from error


def _facts(identity: Identity) -> dict[str, str]:
    return {
        **{f"config {name}": json.dumps(value) for name, value in identity.config.items()},
        **{f"code {name}": value or "none" for name, value in identity.code.items()},
        **{f"task set {name}": value[:12] for name, value in identity.task_sets.items()},
        "starting weights": identity.model[:12],
        **{f"package {name}": value for name, value in identity.packages.items()},
    }


def _code() -> dict[str, str]:
    def git(*arguments: str) -> bytes:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True)
        return done.stdout if done.returncode == 0 else b""

    changes = git("diff", "HEAD", "--", "glm52_tbench2", "conf", "data")
    return {
        "revision": git("rev-parse", "HEAD").decode().strip() or "unknown",
        "changes": hashlib.sha256(changes).hexdigest()[:12] if changes else "",
    }


def _folder_hash(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.glob("*") if p.is_file()):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        if size <= _WHOLE_FILE_BYTES:
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
