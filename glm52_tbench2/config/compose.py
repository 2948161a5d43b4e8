"""From conf/ and overrides to one typed RunConfig, or one clear sentence."""

import difflib
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from .checks import problems
from .errors import UserError
from .files import atomic_write_bytes
from .paths import CONF, command, short
from .schema import RunConfig

CONFIG_FILE = "config.yaml"
_PLUGINS = "hydra_plugins.glm52_tbench2"


def register_schema() -> None:
    """Makes Hydra check every composition against the schema's types, and know hydra/*: glm52."""
    store = ConfigStore.instance().store
    store("schema", RunConfig)
    store(
        "glm52", {"_target_": f"{_PLUGINS}.SweepLauncher", "dry_run": False}, group="hydra/launcher"
    )
    store("glm52", {"_target_": f"{_PLUGINS}.Sweeper", "params": None}, group="hydra/sweeper")


def compose(overrides: list[str]) -> RunConfig:
    """The run that `overrides` describe, checked.

    Raises UserError for an unknown key or group choice, a value of the wrong type, a missing
    value, or knobs that contradict each other.
    """
    return checked(_composed(overrides))


def compose_unchecked(overrides: list[str]) -> RunConfig:
    """The same, whose knobs may contradict each other."""
    return typed(_composed(overrides))


def _composed(overrides: list[str]) -> DictConfig:
    register_schema()
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return hydra_compose("config", overrides)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(explain(error)) from error


def checked(composed: DictConfig) -> RunConfig:
    """The typed config of a composition. Raises UserError as :func:`compose` does."""
    config = typed(composed)
    found = problems(config)
    if found:
        raise UserError("\n".join(found))
    return config


def typed(composed: DictConfig) -> RunConfig:
    """Resolves interpolations and types every value. Raises UserError."""
    try:
        # A plain container, because an override with + has let unknown keys into `composed`.
        plain = OmegaConf.create(OmegaConf.to_container(composed))
        merged = OmegaConf.merge(OmegaConf.structured(RunConfig), plain)
        OmegaConf.resolve(merged)
        config = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise UserError(explain(error)) from error
    assert isinstance(config, RunConfig)
    return config


def to_yaml(config: RunConfig) -> str:
    """The resolved config as YAML, keys in the schema's order."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def save_run_config(config: RunConfig, run_dir: Path) -> None:
    """Writes RUN/config.yaml."""
    atomic_write_bytes(run_dir / CONFIG_FILE, to_yaml(config).encode())


def load_run_config(run_dir: str | Path) -> RunConfig:
    """Reads RUN/config.yaml. Raises UserError if it is not there or is not a run's config."""
    return typed(_recorded(run_dir))


def recorded_config(run_dir: str | Path) -> tuple[RunConfig, str]:
    """The same for who only reads a run, which another version of the code may have made.

    A knob that it does not record has the bare composition's value, one that is unknown now is left
    out; the second result names both, and is "" where there are none.
    """
    recorded = _recorded(run_dir)
    try:
        return typed(recorded), ""
    except UserError:
        bare = OmegaConf.structured(compose_unchecked([]))
        lacking: list[str] = []
        unknown: list[str] = []
        fitted = _fitted(
            OmegaConf.to_container(recorded),
            OmegaConf.to_container(bare, enum_to_str=True),
            RunConfig,
            "",
            (lacking, unknown),
        )
        told = [
            f"{CONFIG_FILE} {verb} {', '.join(names)}{effect}"
            for verb, names, effect in (
                ("does not record", lacking, ", taken as the defaults of today"),
                ("has", unknown, ", unknown today and left out"),
            )
            if names
        ]
        return typed(OmegaConf.create(fitted)), "; ".join(told)


def _recorded(run_dir: str | Path) -> DictConfig:
    path = Path(run_dir) / CONFIG_FILE
    if not path.is_file():
        raise UserError(f"{short(path.parent)} is not a run folder: it has no {CONFIG_FILE}.")
    try:
        loaded = OmegaConf.load(path)
    except Exception as error:
        told = " ".join(str(error).split())
        raise UserError(f"{short(path)} is not readable as YAML: {told}") from error
    if not isinstance(loaded, DictConfig) or not loaded:  # an empty file loads as no keys
        raise UserError(f"{short(path)} is not a run's config: it must hold keys and values.")
    return loaded


def _fitted(
    recorded: Any, bare: Any, cls: type, prefix: str, told: tuple[list[str], list[str]]
) -> Any:
    """The knobs of `cls`, from `recorded` where they are there, else from `bare`."""
    if not isinstance(recorded, dict):
        return recorded
    lacking, unknown = told
    found = {}
    for field in fields(cls):
        name = prefix + field.name
        if field.name not in recorded:
            lacking.append(name)
            found[field.name] = bare[field.name]
        elif isinstance(field.type, type) and is_dataclass(field.type):
            part = recorded[field.name], bare[field.name]
            found[field.name] = _fitted(*part, field.type, f"{name}.", told)
        else:
            found[field.name] = recorded[field.name]
    unknown += [prefix + str(name) for name in recorded if name not in found]
    return found


def leaves(node: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted name -> value of every knob of a config."""
    found: dict[str, Any] = {}
    for field in fields(node):
        value = getattr(node, field.name)
        name = prefix + field.name
        if is_dataclass(value):
            found |= leaves(value, name + ".")
        else:
            found[name] = value
    return found


def _known_keys() -> list[str]:
    def walk(cls: type, prefix: str) -> list[str]:
        names = []
        for field in fields(cls):
            names.append(prefix + field.name)
            if isinstance(field.type, type) and is_dataclass(field.type):
                names += walk(field.type, f"{prefix}{field.name}.")
        return names

    return [*walk(RunConfig, ""), "experiment"]


def _nearest(word: str, known: list[str]) -> str:
    found = difflib.get_close_matches(word, known, 1, 0.5)
    if not found:  # a right name in the wrong group
        found = [k for k in known if k.rpartition(".")[2] == word.rpartition(".")[2]]
    return f"; did you mean '{found[0]}'?" if found else ""


def _options(group: str) -> list[str]:
    return sorted(p.stem for p in (CONF / group).glob("*.yaml"))


def explain(error: Exception) -> str:
    """One sentence for what Hydra or OmegaConf refused."""
    text = f"{error}\n{error.__cause__ or ''}"
    if isinstance(error, OverrideParseException):
        for group in ("experiment", *_groups()):
            if error.override in _options(group):
                return f"{error.override} is not KNOB=VALUE; did you mean {group}={error.override}?"
        return (
            f"{error.override} is not KNOB=VALUE as Hydra reads it; quote a value of other signs "
            "than letters, digits and _-./: twice, as 'runs_dir=\"a folder, näive\"'."
        )
    if "Config group override must be" in text:
        return (
            "A config group takes the name of one of its files, as data=mini8; glm52 train --help "
            "lists them."
        )
    if found := re.search(r"Could not find '([\w/]+)/([^'/]*)'", text):
        group, choice = found.groups()
        options = _options(group)
        return (
            f"There is no {group} '{choice}' (conf/{group}/{choice}.yaml)"
            + (_nearest(choice, options) or ".")
            + (f" Available: {', '.join(options)}." if options else "")
        )
    if found := re.search(r"Ambiguous value for argument '([^']+)'", text):
        return f"{found[1]}: several values make a sweep; write {command('train', '-m', found[1])}."
    if "does not support sweep type" in text:
        return (
            "interval(...) has no end of points; write range(...), choice(...) or values between "
            "commas."
        )
    if found := re.search(
        r"Could not override '([\w/]+)'.*No match in the defaults list", text, re.S
    ):
        return f"There is no config group '{found[1]}'{_nearest(found[1], _groups()) or '.'}"
    if found := re.search(r"Could not override '([\w./@]+)'", text) or re.search(
        r"Could not append to config\.? .*?'([\w./]+)'", text
    ):
        return f"There is no knob '{found[1]}'{_nearest(found[1], _known_keys()) or '.'}"
    if found := re.search(r"Key '([^']+)' (?:is )?not in", text):
        key = re.search(r"full_key: (\S+)", text)
        name = key[1] if key else found[1]
        return f"There is no knob '{name}'{_nearest(name, _known_keys()) or '.'}"
    reason = next(
        line for line in text.splitlines() if line.strip() and "Error merging override" not in line
    )
    reason = reason.strip().rstrip(".")
    if key := re.search(r"full_key: (\S+)", text):
        return f"{key[1]}: {reason[0].lower() + reason[1:]}."
    return f"{reason}."


def _groups() -> list[str]:
    return sorted(p.name for p in CONF.iterdir() if p.is_dir())
