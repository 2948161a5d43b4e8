"""Turns that come again: near-identical ones by sketch, short ones where they are identical."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..sentinel.sketch import Sketch, likeness
from .scan import LEAST, LongTurn, Scan

_CANDIDATES = 4
"""Families that share most with a turn are compared with it."""
_LEAST_SHARED = 0.4
"""Of what a sketch kept: the part that a family must have, or it is not compared."""
_HOLDERS = 16
"""Newest families that a shingle points to: one that is in all turns tells nothing."""
MOST = 100
"""Families read a second time: those with the most |D|, else the most tokens."""


@dataclass(frozen=True)
class Member:
    """A turn of a family."""

    step: int
    sample: int
    """Its sample's place in the step."""
    sample_id: str
    task: str
    number: int
    """Of the turn in its sample, from 0."""
    start: int
    """First token within the sample."""
    tokens: int
    advantage: float
    """NaN where unknown."""
    truncated: bool
    drift: float
    """Sum of |D|; NaN where unknown."""
    rollout: float
    """Mean log-prob in the engine; NaN where unknown."""
    trainer: float
    """Mean log-prob in the trainer before the update; NaN where unknown."""
    looped: float
    """Share of its tokens within loops."""


@dataclass
class Family:
    """Turns that are near-identical to the first of them."""

    sketch: Sketch
    """Of the first."""
    members: list[Member] = field(default_factory=list)
    excerpt: list[int] = field(default_factory=list)
    """Token ids from the middle of the first; [] before it is read a second time."""

    @property
    def steps(self) -> list[int]:
        """Steps that have a member, rising."""
        return sorted({one.step for one in self.members})

    @property
    def tokens(self) -> int:
        """Of all members."""
        return sum(one.tokens for one in self.members)

    @property
    def drift(self) -> float:
        """Sum of |D| over the members that have one."""
        return drift_of(self.members)


@dataclass(frozen=True)
class Repeat:
    """A turn that is said again to the token, too short or too rare to be among the compared."""

    count: int
    tokens: int
    """Of one."""
    steps: int
    step: int
    """Where its first is."""
    sample_id: str
    number: int
    advantage: float
    """Mean; NaN where unknown."""


class Index:
    """Families so far."""

    def __init__(self, similarity: float) -> None:
        self.families: list[Family] = []
        self._similarity = similarity
        self._having: dict[int, list[int]] = {}
        """Hash -> families whose sketch has it, the newest."""

    def add(self, scan: Scan) -> None:
        """The long turns of the next step."""
        for long in scan.long:
            self._family(long.sketch).members.append(_member(scan, long))

    def _family(self, sketch: Sketch) -> Family:
        having = self._having
        shared: Counter[int] = Counter()
        for value, count in zip(sketch.hashes, sketch.counts, strict=True):
            for number in having.get(value, ()):
                shared[number] += count
        least = _LEAST_SHARED * sum(sketch.counts)
        for number, common in shared.most_common(_CANDIDATES):
            if common < least:
                break
            if likeness(self.families[number].sketch, sketch) >= self._similarity:
                return self.families[number]
        for value in sketch.hashes:
            holders = having.setdefault(value, [])
            holders.append(len(self.families))
            del holders[:-_HOLDERS]
        self.families.append(Family(sketch))
        return self.families[-1]


def drift_of(members: Iterable[Member]) -> float:
    """Sum of |D| over the members that have one."""
    return float(np.nansum([one.drift for one in members]))


def worst_first(family: Family) -> tuple[float, int]:
    """Sorts families: those with the most |D| first, else the most tokens."""
    return -family.drift, -family.tokens


def recurring(families: Iterable[Family]) -> tuple[list[Family], int]:
    """Families of two turns or more, at most MOST, and how many more there are."""
    found = [family for family in families if len(family.members) > 1]
    found.sort(key=worst_first)
    return found[:MOST], max(0, len(found) - MOST)


def repeats(scans: Sequence[Scan], most: int) -> tuple[list[Repeat], float]:
    """Identical turns of LEAST tokens or more that are in several steps, at most `most`, those with
    the most tokens first; and the share of all generated tokens in turns that an earlier step
    already had, of any length.
    """
    scans = [scan for scan in scans if scan.digest is not None and len(scan.length)]
    if not scans:
        return [], 0.0
    digests = np.concatenate([scan.digest for scan in scans if scan.digest is not None])
    lengths = np.concatenate([scan.length for scan in scans])
    place = np.repeat(np.arange(len(scans)), [len(scan.length) for scan in scans])
    turn = np.concatenate([np.arange(len(scan.length)) for scan in scans])
    pushed = np.concatenate([scan.advantages[scan.sample] for scan in scans])
    _, first, inverse, counts = np.unique(
        digests, return_index=True, return_inverse=True, return_counts=True
    )
    again = float(lengths[place > place[first][inverse]].sum() / lengths.sum())
    last = np.zeros(len(first), np.int64)
    np.maximum.at(last, inverse, place)
    in_steps = np.flatnonzero((last > place[first]) & (lengths[first] >= LEAST))
    found = []
    for one in in_steps[np.argsort(-((counts - 1) * lengths[first])[in_steps], kind="stable")][
        :most
    ]:
        members = np.flatnonzero(inverse == one)
        scan, number = scans[place[first[one]]], turn[first[one]]
        found.append(
            Repeat(
                count=int(counts[one]),
                tokens=int(lengths[first[one]]),
                steps=len(set(place[members])),
                step=scan.step,
                sample_id=scan.sample_ids[scan.sample[number]],
                number=int(scan.number[number]),
                advantage=float(pushed[members].mean()),
            )
        )
    return found, again


def _member(scan: Scan, long: LongTurn) -> Member:
    turn = long.turn
    sample = int(scan.sample[turn])
    length = int(scan.length[turn])

    def of(name: str) -> float:
        return float(scan.sums[name][turn]) if name in scan.sums else float("nan")

    return Member(
        step=scan.step,
        sample=sample,
        sample_id=scan.sample_ids[sample],
        task=scan.tasks[sample],
        number=int(scan.number[turn]),
        start=int(scan.start[turn]),
        tokens=length,
        advantage=float(scan.advantages[sample]),
        truncated=bool(scan.truncated is not None and scan.truncated[sample]),
        drift=of("drift"),
        rollout=of("rollout") / length,
        trainer=of("trainer") / length,
        looped=long.looped,
    )
