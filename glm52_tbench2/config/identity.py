"""What makes two runs the same run: config, code, tasks, starting weights, packages.

Code is known by its contents, not by its commit: a commit of prose changes no run, and a file that
git does not know yet does. What git says is recorded beside it, for people.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

from .checkout import Git, machine, sources
from .compose import leaves
from .errors import UserError
from .files import atomic_write_bytes
from .fingerprints import ABSENT, folder_hash, joined, tree_hash
from .once import fact
from .paths import resolve, short
from .schema import RunConfig, Scheduler

IDENTITY_FILE = "identity.json"

EXCLUDED = (
    "name",
    "runs_dir",
    "tracking.wandb",
    "tracking.project",
    "tracking.entity",
    "checkpoint.every",
    "checkpoint.keep_every",
    "checkpoint.keep_last",
    "engine.weights_dir",
    "model.checkpoint",
    "optim.state_dir",
    "sandbox.api_key_file",
    "cluster.driver_node",
    "cluster.fabric",
    "cluster.max_restarts",
    "cluster.deadlines",
    "cluster.hardware",
    "cluster.slurm",
)
"""Knobs, and what holds knobs, that say where things lie or how they are logged or queued, and
decide no result."""

DECIDING = ("cluster.slurm.container_image", "cluster.slurm.setup")
"""Knobs below these that decide results all the same: libraries and variables of the roles."""


def decides(knob: str) -> bool:
    """Whether a knob is part of a run's identity."""
    below = tuple(f"{excluded}." for excluded in EXCLUDED)
    return knob in DECIDING or not f"{knob}.".startswith(below)


PACKAGES = ("torch", "megatron-core", "sglang", "transformers", "tokenizers", "openenv", "numpy")
"""Packages whose version decides results."""
ON_GPUS = ("transformer-engine", "sglang-kernel", "sgl-deep-gemm", "flashinfer-python")
"""Those that do the arithmetic on GPUs, where they are installed."""

NOT_RECORDED = "not recorded"
"""In the place of a hash that a run's identity.json lacks."""
NODE_TELLS = "told by the node"
"""In the place of a fact that only a node of the run's job knows, until the job's first start."""
_NAMED = 5
"""Files or tasks named in one difference; more are counted."""


class TaskSet(Protocol):
    """A task set, as far as its identity goes."""

    @property
    def name(self) -> str: ...
    @property
    def ids(self) -> Sequence[str]: ...
    @property
    def sha256(self) -> str: ...


@dataclass(frozen=True)
class Made:
    """Where an identity comes from. Recorded, and no part of it."""

    revision: str
    """git's HEAD, or unknown outside a checkout."""
    changes: str
    """12 hex digits over what differs from the revision, new files included; "": nothing."""
    sources: dict[str, str]
    """Source file -> 12 hex digits of its sha256."""
    task_ids: dict[str, list[str]]
    """Set name -> its tasks."""
    task_files: dict[str, str]
    """Task -> 12 hex digits over its files."""
    machine: dict[str, Any]
    """cpu, cores, gpu and python, by name and number."""
    origin: dict[str, Any] | None = None
    """{"rerun_of": run} or {"sweep": folder, "point": name}; of an evaluation {"evaluates": run,
    "version": of its weights} and {"served": [model, weights] of engine.url}; None for a run of its
    own."""


@dataclass(frozen=True)
class Identity:
    """The facts behind a run's hash, and the hash."""

    config: dict[str, Any]
    """Dotted knob -> value, without the excluded ones."""
    code: str
    """sha256 over the source files that decide results."""
    task_sets: dict[str, str]
    """Set name -> sha256 over its ids."""
    tasks: dict[str, str]
    """Set name -> sha256 over the files of its tasks, ABSENT where one is not there."""
    model: str
    """sha256 over the starting weights' files, see :func:`.fingerprints.hash_files`."""
    packages: dict[str, str]
    made: Made | None = field(default=None, compare=False)
    """None for a run whose identity.json lacks it."""
    hash: str = field(default="", compare=False)

    def expected_hash(self) -> str:
        """What `hash` must be, by the facts."""
        facts = {one.name: getattr(self, one.name) for one in fields(self) if one.compare}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

    def differences(self, other: "Identity") -> list[str]:
        """One line for each fact that differs, "name: mine -> other's" and what is behind it.

        What one of them leaves to a node does not differ.
        """
        mine, theirs = _facts(self), _facts(other)
        names = [*mine, *(name for name in theirs if name not in mine)]
        return [
            f"{name}: {_short(name, mine)} -> {_short(name, theirs)}"
            f"{_behind(name, self.made, other.made)}"
            for name in names
            if mine.get(name) != theirs.get(name)
            and NODE_TELLS not in (mine.get(name), theirs.get(name))
        ]

    def completed(self, node: "Identity") -> "Identity":
        """With what it left to a node from `node`, identified there; itself if it left nothing."""
        found = self
        if NODE_TELLS in self.packages.values():
            found = replace(found, packages=node.packages)
        if self.made and node.made and NODE_TELLS in self.made.machine.values():
            found = replace(found, made=replace(self.made, machine=node.made.machine))
        return found if found is self else replace(found, hash=found.expected_hash())


def runs_here(config: RunConfig, on_node: bool) -> bool:
    """Whether a run's processes are started on this machine; `on_node`: this is one of its job."""
    return on_node or config.cluster.scheduler is Scheduler.local


def identify(
    config: RunConfig,
    sets: Iterable[TaskSet],
    origin: dict[str, Any] | None = None,
    on_node: bool = False,
) -> Identity:
    """The identity of `config` run from this checkout.

    Where a job of Slurm runs it, its nodes tell their machine, and package versions too if they
    have an interpreter of their own: elsewhere these facts are NODE_TELLS.

    Args:
        sets: the task sets of the run.
        origin: see :class:`Made`.
        on_node: this is a node of the job.

    Raises UserError when a file that belongs to it cannot be read.
    """
    git = _git()
    sets = list(sets)
    try:
        code = sources()
        tasks_dir = resolve(config.data.tasks_dir)
        ids = dict.fromkeys(task for one in sets for task in one.ids)
        tasks = {task: tree_hash(tasks_dir / task) for task in ids}
        model = folder_hash(resolve(config.model.path))
        revision, changes = git.told()
    except OSError as error:
        raise UserError(
            f"{short(Path(error.filename))} is part of the run's identity and cannot be read: "
            f"{error.strerror}; make it readable."
        ) from error
    here, slurm = runs_here(config, on_node), config.cluster.slurm
    packages = {name: _version(name) for name in (*PACKAGES, *ON_GPUS)}
    packages = {name: told for name, told in packages.items() if told != ABSENT or name in PACKAGES}
    if not here and (slurm.python or slurm.container_image):
        packages = dict.fromkeys((*PACKAGES, *ON_GPUS), NODE_TELLS)
    identity = Identity(
        config={
            name: value.name if isinstance(value, Enum) else value
            for name, value in leaves(config).items()
            if decides(name)
        },
        code=joined(code),
        task_sets={one.name: one.sha256 for one in sets},
        tasks={one.name: joined({task: tasks[task] for task in one.ids}) for one in sets},
        model=model,
        packages=packages,
        made=Made(
            revision=revision,
            changes=changes,
            sources=_shortened(code),
            task_ids={one.name: list(one.ids) for one in sets},
            task_files=_shortened(tasks),
            machine=machine() if here else dict.fromkeys(machine(), NODE_TELLS),
            origin=origin,
        ),
    )
    return replace(identity, hash=identity.expected_hash())


def save_identity(identity: Identity, run_dir: Path, history: list[dict[str, Any]]) -> None:
    """Writes RUN/identity.json.

    `history`: from when on the run went on with other facts, {"time" (unix seconds), "after_step",
    "differences"} each; no differences: again with those it was started with.
    """
    content = {**asdict(identity), "history": history}
    atomic_write_bytes(run_dir / IDENTITY_FILE, json.dumps(content, indent=1).encode())


def load_identity(run_dir: Path) -> tuple[Identity, list[dict[str, Any]]]:
    """The identity a run was started with, and its history. Raises UserError.

    Facts that its file lacks are NOT_RECORDED: they differ from all others.
    """
    path = run_dir / IDENTITY_FILE
    try:
        content = json.loads(path.read_text())
        history = content.pop("history")
        if made := content.pop("made", None):
            content["made"] = Made(**made)
        else:
            content["code"] = NOT_RECORDED
            content["tasks"] = dict.fromkeys(content["task_sets"], NOT_RECORDED)
        return Identity(**content), history
    except FileNotFoundError:
        raise UserError(
            f"{short(run_dir)} is not a run folder: it has no {IDENTITY_FILE}."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{short(path)} is damaged ({error}); restore it or start a new run."
        ) from error


# --- differences -----------------------------------------------------------------------------


def _facts(identity: Identity) -> dict[str, str]:
    return {
        **{f"config {name}": json.dumps(value) for name, value in identity.config.items()},
        "code": identity.code,
        **{f"task set {name}": value for name, value in identity.task_sets.items()},
        **{f"tasks of {name}": value for name, value in identity.tasks.items()},
        "starting weights": identity.model,
        **{f"package {name}": value for name, value in identity.packages.items()},
    }


def _short(name: str, facts: Mapping[str, str]) -> str:
    """The fact as a reader needs it: 12 digits of a hash."""
    value = facts.get(name, ABSENT)
    is_hash = name.startswith(("code", "task", "starting")) and value != NOT_RECORDED
    return value[:12] if is_hash else value


def _behind(name: str, mine: Made | None, theirs: Made | None) -> str:
    """Which files or tasks make a hash differ, as " (changed a, b; added c)"; "" if unknown."""
    if mine is None or theirs is None:
        return ""
    kind, _, set_name = name.rpartition(" ")
    if name == "code":
        return _changes(mine.sources, theirs.sources)
    if set_name not in mine.task_ids or set_name not in theirs.task_ids:
        return ""
    contents = kind == "tasks of"
    before, after = (
        {task: made.task_files[task] if contents else "" for task in made.task_ids[set_name]}
        for made in (mine, theirs)
    )
    return _changes(before, after)


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    kinds = {
        "changed": [name for name in before if before[name] != after.get(name, before[name])],
        "added": [name for name in after if name not in before],
        "removed": [name for name in before if name not in after],
    }
    told = "; ".join(f"{kind} {_listed(names)}" for kind, names in kinds.items() if names)
    return f" ({told})" if told else ""


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _shortened(hashes: Mapping[str, str]) -> dict[str, str]:
    return {name: value[:12] for name, value in hashes.items()}


@fact
def _git() -> Git:
    return Git()


@fact
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ABSENT
