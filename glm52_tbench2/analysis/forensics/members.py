"""Families read a second time: proven to the token, and what within them moves."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..sentinel.sketch import shingle_hashes
from .families import Family, Member
from .scan import BINS, TYPES, Floats, along, in_loops
from .source import Source, Step

EXCERPT = 120
"""Tokens of the excerpt, from the middle of a turn."""

Content = tuple[NDArray[np.uint64], NDArray[np.int64]]
"""Shingle hashes, rising, and how often each occurs."""


@dataclass
class Reading:
    """What a step's members of one family say."""

    likeness: list[float] = field(default_factory=list)
    """Exact weighted Jaccard similarity of each member with the first of the family, in their
    order; everything else here is of those alone that belong to it."""
    heat: Floats = field(default_factory=lambda: np.zeros(BINS))
    """Sum over members of mean |D| by position."""
    in_heat: int = 0
    """How many these are."""
    in_loop: tuple[float, int] = (0.0, 0)
    """|D| and number of tokens within loops."""
    outside: tuple[float, int] = (0.0, 0)
    """The same of the others."""
    types: dict[int, tuple[float, int]] = field(default_factory=dict)
    """Token id -> sum of |D|, occurrences, of those with the most."""


def contents(source: Source, families: Sequence[Family]) -> dict[int, tuple[Content, list[int]]]:
    """Place of a family -> the content of its first member, and an excerpt's token ids.

    A family whose first member cannot be read is left out.
    """
    wanted: dict[int, list[int]] = {}
    for place, family in enumerate(families):
        wanted.setdefault(family.members[0].step, []).append(place)
    found = {}
    for number, places in sorted(wanted.items()):
        step = source.read(number, tokens_only=True)
        for place in places if step is not None else []:
            assert step is not None
            said = _said(step, families[place].members[0])
            middle = max(0, (len(said) - EXCERPT) // 2)
            found[place] = _content(said), said[middle : middle + EXCERPT].tolist()
    return found


def read(
    step: Step,
    members: Mapping[int, list[Member]],
    first: Mapping[int, Content],
    similarity: float,
) -> dict[int, Reading]:
    """Place of a family -> what its members of this step say, those that belong to it.

    `members`: place of a family -> its members here; `first`: the content of its first one;
    `similarity`: from which a member belongs to it.
    """
    return {place: _reading(step, members[place], first[place], similarity) for place in members}


def alike(one: Content, other: Content) -> float:
    """Exact weighted Jaccard similarity: sum of the smaller counts over sum of the larger."""
    _, here, there = np.intersect1d(one[0], other[0], assume_unique=True, return_indices=True)
    common = int(np.minimum(one[1][here], other[1][there]).sum())
    return common / (int(one[1].sum()) + int(other[1].sum()) - common)


def _content(tokens: NDArray[np.integer]) -> Content:
    hashes, counts = np.unique(shingle_hashes(tokens), return_counts=True)
    return hashes, counts


def _said(step: Step, member: Member) -> NDArray[np.integer]:
    start = int(step.offsets[member.sample]) + member.start
    return step.tokens[start : start + member.tokens]


def _reading(step: Step, members: Sequence[Member], first: Content, similarity: float) -> Reading:
    found = Reading()
    sums: dict[int, float] = {}
    counts: Counter[int] = Counter()
    for member in members:
        said = _said(step, member)
        found.likeness.append(alike(first, _content(said)))
        if found.likeness[-1] < similarity or step.rollout is None or step.trainer is None:
            continue
        start = int(step.offsets[member.sample]) + member.start
        span = slice(start, start + member.tokens)
        distance = np.abs(step.trainer[span] - step.rollout[span])
        distance = np.where(np.isfinite(distance), distance, 0)
        if member.tokens >= BINS:
            found.heat += along(distance, np.array([0]), np.array([len(said)]))[0]
            found.in_heat += 1
        looped = in_loops(said)
        found.in_loop = _plus(found.in_loop, distance[looped])
        found.outside = _plus(found.outside, distance[~looped])
        ids, inverse = np.unique(said, return_inverse=True)
        total = np.bincount(inverse, weights=distance)
        for place in np.argsort(-total)[:TYPES]:
            sums[int(ids[place])] = sums.get(int(ids[place]), 0.0) + float(total[place])
            counts[int(ids[place])] += int((inverse == place).sum())
    found.types = {
        one: (sums[one], counts[one]) for one in sorted(sums, key=lambda one: -sums[one])[:TYPES]
    }
    return found


def _plus(so_far: tuple[float, int], more: Floats) -> tuple[float, int]:
    return so_far[0] + float(more.sum()), so_far[1] + len(more)
