"""The steps so far, as detectors read them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile

from ..stats import Rewards
from .facts import GiantTurn, StepFacts, Visit
from .sketch import Sketch, likeness

_CANDIDATES = 4
"""Families that share most with a turn are compared with it."""


@dataclass
class Family:
    """Giant turns that are near-identical to the first of them."""

    sketch: Sketch
    """Of the first."""
    members: list[tuple[int, GiantTurn]] = field(default_factory=list)
    """Step and turn, in order."""
    steps: list[int] = field(default_factory=list)
    """Steps that have a member, rising."""
    advantage: float = 0.0
    """Mean over the members' tokens."""
    _tokens: int = 0
    _drifts: dict[int, tuple[float, int]] = field(default_factory=dict)
    """Step -> sum of the drifts of its members, and how many these are."""

    def add(self, step: int, turn: GiantTurn) -> None:
        """One more member, of the last step or a new one."""
        self.members.append((step, turn))
        if not self.steps or self.steps[-1] != step:
            self.steps.append(step)
        self._tokens += turn.tokens
        self.advantage += (turn.advantage - self.advantage) * turn.tokens / self._tokens
        drift, count = self._drifts.get(step, (0.0, 0))
        self._drifts[step] = drift + turn.drift, count + 1

    @property
    def tasks(self) -> list[str]:
        """Tasks that have a member."""
        return sorted({turn.task for _, turn in self.members})

    def drift(self, step: int) -> float:
        """Mean |log p_trainer - log p_rollout| of the members of a step."""
        drift, count = self._drifts[step]
        return drift / count


class History:
    """Facts of steps, in order, and what follows from them."""

    def __init__(self, similarity: float) -> None:
        """`similarity`: from which two giant turns are near-identical, see :mod:`.sketch`."""
        self.steps: list[StepFacts] = []
        self.evals: dict[int, Rewards] = {}
        """Steps trained -> held-out task -> rewards."""
        self.visits: dict[str, list[tuple[int, Visit]]] = {}
        """Task -> step and visit."""
        self.families: list[Family] = []
        self.current: list[Family] = []
        """Those with a member of the last step."""
        self._similarity = similarity
        self._having: dict[int, list[int]] = {}
        """Hash -> families whose sketch has it."""

    def add(self, facts: StepFacts) -> None:
        """The next step; a step that is trained again replaces nothing: start anew."""
        self.steps.append(facts)
        for task, visit in facts.visits.items():
            self.visits.setdefault(task, []).append((facts.step, visit))
        joined = {
            id(family): family for family in (self._join(facts.step, g) for g in facts.giants)
        }
        self.current = list(joined.values())

    def series(self, name: str) -> dict[int, float]:
        """Step -> value of a metric, where it has one."""
        return {one.step: one.metrics[name] for one in self.steps if name in one.metrics}

    def streak(self, name: str, value: float) -> list[StepFacts]:
        """The steps up to the last one in all of which a metric has this very value."""
        found = takewhile(lambda one: one.metrics.get(name) == value, reversed(self.steps))
        return list(found)[::-1]

    def family(self, sketch: Sketch) -> Family | None:
        """The family that a turn belongs to."""
        having = self._having
        shared = Counter([n for value in sketch.hashes if value in having for n in having[value]])
        for number, _ in shared.most_common(_CANDIDATES):
            if likeness(self.families[number].sketch, sketch) >= self._similarity:
                return self.families[number]
        return None

    def _join(self, step: int, giant: GiantTurn) -> Family:
        family = self.family(giant.sketch)
        if family is None:
            family = Family(giant.sketch)
            for value in giant.sketch.hashes:
                self._having.setdefault(value, []).append(len(self.families))
            self.families.append(family)
        family.add(step, giant)
        return family


def visits_per_task(visits: Mapping[str, list[tuple[int, Visit]]]) -> float:
    """Mean number of visits of the tasks that have been visited."""
    return sum(map(len, visits.values())) / max(1, len(visits))
