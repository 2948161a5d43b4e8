"""What stands in the way of a run on this machine, all of it, before anything is started."""

import math
import netrc
import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..config import checks
from ..config.errors import UserError
from ..config.fabric import fabric_address
from ..config.once import fact
from ..config.paths import resolve
from ..config.schema import (
    Api,
    Device,
    RunConfig,
    SandboxConfig,
    SandboxProvider,
    Scheduler,
    WandbMode,
)
from ..engines import external
from ..envs import providers
from ..envs.dockerfile import read_recipe
from ..envs.sandbox import SandboxError
from ..tasks.sets import TaskSet, check_disjoint, check_leakage, load_set
from ..tasks.suite import load_suite, select
from ..trainer import limits
from ..trainer.hf import check_hf_config
from .placement import given_port
from .plan.findings import memory_problems
from .ports import is_free
from .slurm.limits import cluster_problems

_GIB = 2**30
_SERVICES = (SandboxProvider.daytona, SandboxProvider.external)


def check(config: RunConfig) -> None:
    """Raises UserError with every problem, each with its mend."""
    found = problems(config)
    if len(found) == 1:
        raise UserError(found[0])
    if found:
        listed = "\n".join(f"  - {problem}" for problem in found)
        raise UserError(f"The run cannot start, for {len(found)} reasons:\n{listed}")


def tell(configs: Iterable[RunConfig]) -> None:
    """Prints what was set and has no effect, once for all runs."""
    for note in dict.fromkeys(note for config in configs for note in checks.notes(config)):
        print(f"Note: {note}", file=sys.stderr)


def problems(config: RunConfig) -> list[str]:
    """Each problem as one sentence that says what to do instead; empty: none."""
    here = config.cluster.scheduler is Scheduler.local
    if not here and shutil.which("sbatch") is None:
        return cluster_problems(config)  # the rest would be told about the wrong machine
    return [
        *name_problems(config),
        *(limits.problems(config) if config.trains else []),
        # A layout that contradicts itself cannot be reckoned with.
        *([] if checks.problems(config) else memory_problems(config)),
        *_endpoint(config),
        *(_machine(config) if here else cluster_problems(config)),
        # A job's nodes make its local sandboxes; a service can be asked from here.
        *(_sandbox(config) if here or config.sandbox.provider in _SERVICES else []),
        *_model(config),
        *_tasks(
            config.data.train if config.trains else None,
            config.data.eval,
            config.data.tasks_dir,
            config.sandbox.provider is SandboxProvider.local,
        ),
        *disk([config]),
        *_secrets(config),
    ]


def node_problems(config: RunConfig, node: int) -> list[str]:
    """What stands in the way of a job's roles on one of its nodes, where this runs."""
    found = _model(config)
    if node == config.cluster.driver_node:
        found += _sandbox(config)
    return found


def name_problems(config: RunConfig) -> list[str]:
    """What keeps the run's name from being a folder's."""
    if re.fullmatch(r"[\w.+=,-]+", config.name) and not config.name.startswith((".", "-")):
        return []
    return [
        f"name is '{config.name}', which cannot be a folder's name; "
        "write letters, digits and any of _ . + = , - with none of . and - in front"
    ]


def _endpoint(config: RunConfig) -> list[str]:
    if config.engine.url is None:
        return []
    if not config.trains:
        try:
            external.served(config)
        except UserError as error:
            return [str(error)]
        return []
    if config.engine.api is Api.openai:
        return [
            "engine.api=openai returns no log-probs of its tokens, so it serves evaluations only; "
            "write glm52 eval, or another engine=."
        ]
    return [
        f"engine.url is {config.engine.url}, whose weights no trainer here can change, so it "
        "serves evaluations only; write glm52 eval, or another engine=."
    ]


def _machine(config: RunConfig) -> list[str]:
    found = []
    try:
        host, _ = fabric_address(config.cluster.fabric)
    except UserError as error:
        found.append(str(error))
    else:
        ports = [given_port(config, index) for index in range(config.engine.num_engines)]
        found += [
            f"engine.server_args.port gives port {port} to an engine, but it is in use on {host}; "
            "choose another, or leave it out for a free one."
            for port in ports
            if port is not None and not is_free(host, port)
        ]
    if config.cluster.nodes != 1 or config.parallel.nodes != 1:
        found.append(
            "cluster.scheduler=local runs on one node, but cluster.nodes is "
            f"{config.cluster.nodes} and parallel.nodes {config.parallel.nodes}; write 1 for both."
        )
    return found + _gpus(config)


def _gpus(config: RunConfig) -> list[str]:
    here = len(list(Path("/dev").glob("nvidia[0-9]*")))
    on_gpus = config.trains and config.parallel.device is Device.cuda
    trainer = config.parallel.gpus_per_node if on_gpus else 0
    engines = (
        config.engine.num_engines * config.engine.gpus_per_engine
        if config.engine.device is Device.cuda
        else 0
    )
    if trainer + engines <= here:
        return []
    users = [
        f"parallel.device=cuda takes {trainer}" if trainer else "",
        f"engine.device=cuda takes {engines}" if engines else "",
    ]
    return [
        f"{' and '.join(filter(None, users))} GPUs, but this machine has {here or 'none'}; "
        "write engine=cpu parallel=single, or run where the GPUs are."
    ]


def _sandbox(config: RunConfig) -> list[str]:
    try:
        task_id = load_set(config.data.train if config.trains else config.data.eval).ids[0]
    except UserError:
        return []  # of which _tasks tells
    return _provider(tuple(vars(config.sandbox).items()), task_id)


@fact
def _provider(knobs: tuple[tuple[str, Any], ...], task_id: str) -> list[str]:
    try:
        providers.check(SandboxConfig(**dict(knobs)), task_id)
    except UserError as error:
        return [str(error)]
    return []


def _model(config: RunConfig) -> list[str]:
    folder = resolve(config.model.path)
    if not folder.is_dir():
        return [
            f"model.path is {folder}, and there is no such folder; put the weights of "
            f"{config.model.name} there, or write model.path=FOLDER."
        ]
    made = config.model.checkpoint
    if made is not None and config.trains and not (resolve(made) / "STABLE").is_file():
        return [
            f"model.checkpoint is {resolve(made)}, which is no whole checkpoint; make it with "
            f"glm52 weights import, or write model.checkpoint=null."
        ]
    # Of what engine.url serves, only the tokenizer is needed here.
    weights = ("config.json", "*.safetensors") if config.engine.url is None else ()
    missing = [name for name in (*weights, "tokenizer.json") if not any(folder.glob(name))]
    if missing:
        return [f"model.path, {folder}, holds no {' and no '.join(missing)}; copy the whole model."]
    if config.engine.url is not None:
        return []
    try:
        check_hf_config(config.model, folder)
    except UserError as error:
        return [str(error)]
    return []


@fact
def _tasks(train: str | None, held_out: str, tasks_dir: str, local: bool) -> list[str]:
    """`train`: None: nothing is trained on, so any set may be played."""
    found: list[str] = []
    sets: list[TaskSet] = []
    for name in filter(None, (train, held_out)):
        try:
            sets.append(load_set(name))
        except UserError as error:
            found.append(str(error))
    try:
        if len(sets) == 2:
            check_disjoint(*sets)
    except UserError as error:
        found.append(str(error))
    try:
        suite = load_suite(resolve(tasks_dir))
        chosen = [select(suite, one.ids) for one in sets]
        if not found and len(chosen) == 2:
            check_leakage(*chosen)
        if local:
            for task in (task for tasks in chosen for task in tasks):
                read_recipe(task.environment)
    except (UserError, SandboxError) as error:
        found.append(str(error))
    return found


def disk(configs: Sequence[RunConfig]) -> list[str]:
    """Whether the disk has room for all these runs, which lie in the first one's runs_dir."""
    runs = resolve(configs[0].runs_dir)
    there = next(p for p in (runs, *runs.parents) if p.exists())
    if not os.access(there, os.W_OK):
        return [f"runs_dir is {runs}, where nothing can be written; write runs_dir=FOLDER."]
    need = sum(map(_checkpoint_bytes, configs)) + _GIB
    free = shutil.disk_usage(there).free
    if free >= need:
        return []
    return [
        f"runs_dir is {runs}, with {free / _GIB:.1f} GiB free, but checkpoints and batches need "
        f"about {need / _GIB:.1f} GiB; free some, or write runs_dir=FOLDER on another disk."
    ]


def _checkpoint_bytes(config: RunConfig) -> int:
    if not config.trains:
        return 0
    weights = sum(p.stat().st_size for p in resolve(config.model.path).glob("*.safetensors"))
    # A checkpoint holds weights, their float32 copy and two moments: at most 8 times 2 bytes a
    # parameter. One more than is kept exists while it is written, and the batches need room too.
    kept = config.checkpoint.keep_last + config.steps // (config.checkpoint.keep_every or math.inf)
    return 8 * weights * (int(kept) + 1)


def _secrets(config: RunConfig) -> list[str]:
    if config.tracking.wandb is not WandbMode.online or os.environ.get("WANDB_API_KEY"):
        return []
    try:
        if netrc.netrc().authenticators("api.wandb.ai"):
            return []
    except (OSError, netrc.NetrcParseError):
        pass
    return [
        "tracking.wandb=online needs a key: set WANDB_API_KEY or run wandb login, "
        "or write tracking.wandb=offline."
    ]
