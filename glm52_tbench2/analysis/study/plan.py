"""What a study fixes in advance: its arms, seeds and steps, read from one YAML file.

STUDY/study.yaml is that file as it was when the study was made; pages are written from it alone.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from ...config.errors import UserError
from ...config.paths import DATA

PLAN_FILE = "study.yaml"
BASE = "base"
SET_SIZE = DATA / "study" / "set_size.yaml"


@dataclass
class Tried:
    """A setting that was tried before the study was fixed, and what was seen of it."""

    setting: str = MISSING
    why: str = MISSING
    seen: str = MISSING


@dataclass
class Claim:
    """Something that was said of the divergence, and what an arm would show if it held."""

    claim: str = MISSING
    arm: str = MISSING
    clock: str = MISSING
    """steps or visits: at equal which the arm is compared with the base."""
    expect: str = MISSING
    """lower, higher or same, of the drift on capped turns."""


@dataclass
class Arm:
    title: str = MISSING
    family: str = MISSING
    """Arms that are shown together."""
    change: str = MISSING
    """What it changes of the base, in two or three words."""
    overrides: list[str] = field(default_factory=list)
    steps: int | None = None
    """More than the study's, for as many visits a task as the base has; null: the study's."""


@dataclass
class Quick:
    """A part of the study that ends in minutes."""

    arms: list[str] = MISSING
    seeds: list[int] = MISSING
    steps: int = MISSING
    overrides: list[str] = MISSING


@dataclass
class Plan:
    base: list[str] = MISSING
    seeds: list[int] = MISSING
    steps: int = MISSING
    """Of the base: what is compared at equal steps."""
    fixed: list[str] = MISSING
    tried: list[Tried] = MISSING
    claims: list[Claim] = MISSING
    arms: dict[str, Arm] = MISSING
    quick: Quick | None = None

    @property
    def num_compared(self) -> int:
        """Arms that are compared with the base."""
        return max(1, len(self.arms) - 1)

    def steps_of(self, arm: str) -> int:
        return self.arms[arm].steps or self.steps

    def points(self) -> list[tuple[str, str, list[str]]]:
        """(name, arm, overrides beside the base) of each run, in the order they are made.

        All arms at one seed before the next seed, short ones first: a study that is stopped has
        compared as many arms as it could.
        """
        order = sorted(self.arms, key=self.steps_of)
        return [
            (
                point_name(arm, seed),
                arm,
                [*self.arms[arm].overrides, f"steps={self.steps_of(arm)}", f"seed={seed}"],
            )
            for seed in self.seeds
            for arm in order
        ]

    def shortened(self) -> "Plan":
        """The part that ends in minutes. Raises UserError where the plan has none."""
        if (quick := self.quick) is None:
            raise UserError("The study has no part `quick`; leave --quick out.")
        arms = {
            name: Arm(arm.title, arm.family, arm.change, arm.overrides)
            for name, arm in self.arms.items()
            if name in quick.arms
        }
        base = [*self.base, *quick.overrides]
        claims = [claim for claim in self.claims if claim.arm in arms]
        return Plan(base, quick.seeds, quick.steps, self.fixed, self.tried, claims, arms)


def point_name(arm: str, seed: int) -> str:
    """The folder of an arm's run."""
    return f"{arm}-seed{seed}"


def load_plan(path: Path) -> Plan:
    """Raises UserError for a file that is no plan."""
    try:
        loaded: Any = OmegaConf.merge(OmegaConf.structured(Plan), OmegaConf.load(path))
        plan = OmegaConf.to_object(loaded)
        OmegaConf.to_container(loaded, throw_on_missing=True)
    except FileNotFoundError:
        raise UserError(
            f"{path.parent} is not a study's folder: it has no {path.name}; "
            "without --page, `glm52 study DIR` makes one."
        ) from None
    except (OSError, YAMLError, OmegaConfBaseException, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} is not a study's plan ({reason}); see {SET_SIZE}.") from error
    assert isinstance(plan, Plan)
    if unknown := sorted({claim.arm for claim in plan.claims} - set(plan.arms)):
        raise UserError(f"{path} has claims on {', '.join(unknown)}, which are no arms of it.")
    if BASE not in plan.arms:
        raise UserError(f"{path} has no arm `{BASE}`, with which all others are compared; add it.")
    return plan


def save_plan(plan: Plan, path: Path) -> None:
    """Writes what :func:`load_plan` reads."""
    path.write_text(OmegaConf.to_yaml(OmegaConf.structured(plan)))
