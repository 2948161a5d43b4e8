"""Pieces of evidence, and how they add up to a confidence."""

from collections.abc import Callable
from dataclasses import dataclass, field

from .examine import Examination

WORDS = ((0.85, "very likely"), (0.65, "likely"), (0.5, "possible"))
"""Least score -> how sure that is; below the last a mechanism is not named."""
TOLD = WORDS[-1][0]


@dataclass(frozen=True)
class Evidence:
    """One question asked of a run."""

    name: str
    weight: float
    holds: bool | None
    """None: the run does not tell."""
    sentence: str
    """What was found, or what is missing to tell."""
    needed: bool = False
    """Where it does not hold, the mechanism is not named, whatever else does."""


@dataclass(frozen=True)
class Account:
    """What a mechanism would explain: the verdict's answers to since when and where."""

    since: int | None = None
    tasks: list[str] = field(default_factory=list)
    turns: list[str] = field(default_factory=list)
    tokens: str = ""
    until: int = 0
    """The step that a test must reach for what it explains to be seen."""


@dataclass(frozen=True)
class Mechanism:
    """A named way of going wrong."""

    name: str
    title: str
    judge: Callable[[Examination], tuple[list[Evidence], Account]]
    tests: tuple[tuple[str, ...], ...]
    """Overrides of the smallest experiment, the first that composes on the run's config and changes
    it; {third} is a third of the run's learning rate, {twice} are twice its samples a group."""
    predicts: str
    """What that experiment shows if the mechanism is right, and if it is not."""
    remedy: str
    """What to change if it is."""
    after: int = 20
    """Steps that the experiment goes on beyond the onset."""
    benign: bool = False
    """It is no illness: where nothing else is found, the run is healthy."""


@dataclass(frozen=True)
class Finding:
    """A mechanism, judged on a run."""

    mechanism: Mechanism
    evidence: list[Evidence]
    account: Account

    @property
    def score(self) -> float:
        """Weight of the evidence that holds, over all weight: what is not known does not hold.

        0 where needed evidence does not hold, or is not known.
        """
        if any(one.needed and not one.holds for one in self.evidence):
            return 0.0
        total = sum(one.weight for one in self.evidence)
        return sum(one.weight for one in self.evidence if one.holds) / total

    @property
    def confidence(self) -> str:
        """In words; "" below what is named."""
        return confidence(self.score)

    @property
    def told(self) -> bool:
        """Whether it is named."""
        return self.score >= TOLD


def confidence(score: float) -> str:
    """A score in words; "" below what is named."""
    return next((word for least, word in WORDS if score >= least), "")
