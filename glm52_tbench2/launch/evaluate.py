"""What `glm52 eval` adds to a run: an evaluation by itself is a run without steps."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..analysis.run_files import RunFiles
from ..config.compose import checked, compose, explain, load_run_config, to_yaml
from ..config.errors import UserError
from ..config.identity import load_identity
from ..config.paths import CONF, command, resolve, short
from ..config.schema import Api, RunConfig, Scheduler, WandbMode, WeightTransport
from ..engines import external
from ..engines.weights import to_serve
from ..tasks.sets import load_set
from ..tasks.suite import load_suite, select

Origin = dict[str, Any]


def planned(overrides: Sequence[str], run_dir: Path | None) -> tuple[RunConfig, Origin]:
    """The evaluation that overrides describe, and what it is made from.

    `run_dir`: of a run whose newest weights are evaluated, by its config; None: model.path.
    Raises UserError.
    """
    origin: Origin = {}
    if run_dir is None:
        config = compose(list(overrides))
    else:
        config = _of_run(run_dir, overrides)
        folder, version = to_serve(config, run_dir.resolve())
        if not version and config.engine.transport is not WeightTransport.disk:
            raise UserError(
                f"{short(run_dir)} keeps its weights in no folder that an engine can load "
                f"(engine.transport={config.engine.transport.name}); write model.path=FOLDER."
            )
        config = replace(config, model=replace(config.model, path=str(folder)))
        origin = {"evaluates": run_dir.resolve().name, "version": version}
    config = replace(
        config,
        name=f"{config.name}-eval",
        steps=0,
        eval=replace(config.eval, every=1),
        # Engines load their weights once, and from a folder.
        engine=replace(config.engine, transport=WeightTransport.disk),
        tracking=replace(config.tracking, wandb=WandbMode.disabled),
    )
    if config.cluster.scheduler is not Scheduler.local:
        raise UserError("glm52 eval runs on this machine only; write cluster=local.")
    if config.engine.dtype == "fp8_rounded":
        raise UserError(
            "engine.dtype=fp8_rounded rounds what a trainer sends, and an evaluation has none; "
            "write float32, bfloat16 or fp8."
        )
    return config, origin


def with_endpoint(config: RunConfig, origin: Origin | None) -> tuple[RunConfig, Origin | None]:
    """The same with what engine.url serves, which decides what is measured. Raises UserError."""
    if config.engine.url is None:
        return config, origin
    found = external.served(config)
    if config.engine.api is Api.openai:
        config = replace(config, engine=replace(config.engine, model=found.model))
    return config, {**(origin or {}), "served": [found.model, found.weights]}


def check_goes_on(run_dir: Path, config: RunConfig) -> None:
    """Raises UserError when engine.url serves other weights than the evaluation began with."""
    if config.trains or config.engine.url is None:
        return
    made = load_identity(run_dir)[0].made
    began = ((made and made.origin) or {}).get("served")
    found = external.served(config)
    if began != [found.model, found.weights]:
        raise UserError(
            f"engine.url, {config.engine.url}, serves {found.model} (weights {found.weights}) now, "
            f"but {short(run_dir)} began with {began}; serve those again, or start anew with "
            f"{command('eval')}."
        )


def check_room(config: RunConfig) -> None:
    """Raises UserError when a task's prompt leaves no room for a turn in the session budget."""
    from ..rollout.chat import ChatLayout

    chat = ChatLayout.load(resolve(config.model.path))
    suite = load_suite(resolve(config.data.tasks_dir))
    rollout = config.rollout
    lengths = {
        task.id: len(chat.prompt(rollout.system_prompt, task.instruction))
        for task in select(suite, load_set(config.data.eval).ids)
    }
    longest = max(lengths, key=lambda task: lengths[task])
    if lengths[longest] >= rollout.max_session_tokens:
        raise UserError(
            f"rollout.max_session_tokens is {rollout.max_session_tokens}, but the prompt of "
            f"{longest} alone has {lengths[longest]} tokens; raise it."
        )


def _of_run(run_dir: Path, overrides: Sequence[str]) -> RunConfig:
    """The config of a run with knobs changed; groups are of conf/, which it may not come from."""
    config = load_run_config(run_dir)
    if RunFiles.open(run_dir).state == "running":
        raise UserError(
            f"{short(run_dir)} is running, and removes the weights that it has replaced; stop it "
            f"with {command('stop', run_dir)}, or write model.path=FOLDER of a copy."
        )
    groups = {path.name for path in CONF.iterdir() if path.is_dir()}
    for override in overrides:
        name, equals, _ = override.partition("=")
        if not equals or name in groups:
            raise UserError(
                f"{override} is no KNOB=VALUE; with --run, knobs of that run's config are changed, "
                "as data.eval=mini/eval20, and no groups chosen."
            )
    try:
        changes = OmegaConf.from_dotlist(list(overrides))
        merged = OmegaConf.merge(OmegaConf.create(to_yaml(config)), changes)
    except OmegaConfBaseException as error:
        raise UserError(explain(error)) from error
    except yaml.YAMLError as error:
        told = " ".join(overrides)
        raise UserError(f"A value of {told} is no YAML; quote it, as 'KNOB=\"VALUE\"'.") from error
    return checked(merged)  # type: ignore[arg-type]
