"""A step reduced to its turns: every number a run is judged by is a sum over these."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..sentinel.sketch import SHINGLE, Sketch, shingle_hashes, sketch
from .source import Step, spans

LONGEST = 96
"""Turns of a step that are compared with those of other steps: its longest."""
LEAST = 32
"""Tokens of a turn below which it is never compared."""
BINS = 20
"""Parts of a turn, for the heat along it."""
REPEATED = 3
"""A token is within a loop when its shingle occurs this often in its turn."""
_BLOCK = 2**16
"""Tokens that are summed at one time."""
TYPES = 20
"""Token types kept a step, those with the most |D|."""
_CLAMP, _CEILING = 20.0, 10.0
"""As of trainer/train_rollout_kl."""

Floats = NDArray[np.floating]


@dataclass(frozen=True)
class LongTurn:
    """One of a step's longest turns."""

    turn: int
    """Its place among the step's turns."""
    sketch: Sketch
    looped: float
    """Share of its tokens within loops."""


@dataclass
class Scan:
    """A step. Arrays [S] are a sample each, [K] a turn each; D = log p_trainer - log p_rollout.

    Sums run over the tokens of a turn on which D is finite.
    """

    step: int
    sample_ids: list[str]
    tasks: list[str]
    groups: list[str] | None
    rewards: Floats
    """[S]"""
    advantages: Floats
    """[S]; NaN where unknown."""
    truncated: NDArray[np.bool_] | None
    """[S]"""
    sizes: NDArray[np.int64]
    """[S] tokens, prompt and observations included."""
    sample: NDArray[np.int64]
    """[K] the turn's sample."""
    number: NDArray[np.int64]
    """[K] its place in the sample, from 0."""
    length: NDArray[np.int64]
    """[K] generated tokens."""
    start: NDArray[np.int64]
    """[K] first token, within the sample."""
    sums: dict[str, Floats] = field(default_factory=dict)
    """drift (|D|), signed (D), kl, rollout, trainer, entropy, zero (D = 0), over_1 (|D| > 1),
    compared (tokens): [K] float64, those that the step has."""
    age: Floats | None = None
    """[K] version that trains minus version that generated it, mean of first and last token."""
    aged_from_newest: bool = False
    """Which version trains is not known, and the newest in the step is taken for it: ages are
    differences alone, and no turn is known to be fresh."""
    digest: NDArray[np.uint64] | None = None
    """[K] equal for equal turns."""
    long: list[LongTurn] = field(default_factory=list)
    heat: Floats | None = None
    """[BINS] mean |D| by position along turns of at least BINS tokens, each weighing the same."""
    types: dict[int, tuple[float, int]] = field(default_factory=dict)
    """Token id -> sum of |D|, occurrences, of those with the most."""

    @property
    def scored(self) -> bool:
        """Whether both log-probs are there."""
        return "drift" in self.sums

    def total(self, name: str) -> float:
        """A sum over all turns; NaN where the step lacks it."""
        return float(self.sums[name].sum()) if name in self.sums else float("nan")


def scan(step: Step, metrics_only: bool = False) -> Scan:
    """The scan of a step. `metrics_only`: without what needs the tokens themselves."""
    starts, ends = spans(step.mask, step.offsets)
    sample = np.searchsorted(step.offsets, starts, side="right") - 1
    first = np.searchsorted(sample, np.arange(len(step.sample_ids)))
    unknown = np.full(len(step.sample_ids), np.nan)
    found = Scan(
        step=step.step,
        sample_ids=step.sample_ids,
        tasks=step.tasks,
        groups=step.groups,
        rewards=step.rewards,
        advantages=unknown if step.advantages is None else step.advantages,
        truncated=step.truncated,
        sizes=np.diff(step.offsets),
        sample=sample,
        number=np.arange(len(starts)) - first[sample],
        length=ends - starts,
        start=starts - step.offsets[sample],
        age=_age(step, starts, ends),
        aged_from_newest=step.version is None,
        sums={},
    )
    if len(starts):
        distance = _distances(step, starts, ends, found)
        if not metrics_only:
            _contents(step, starts, ends, distance, found)
    return found


def _distances(
    step: Step, starts: NDArray[np.int64], ends: NDArray[np.int64], found: Scan
) -> Floats | None:
    """Fills the sums; |D| by token, 0 where it is not finite or nothing was generated."""
    distance = None
    if step.rollout is not None and step.trainer is not None:
        distance = np.zeros(len(step.mask), np.float32)
    # Turns in blocks: what is computed between reading and summing them stays in the cache.
    cuts = np.flatnonzero(np.diff(ends // _BLOCK)) + 1
    blocks = []
    for block in np.split(np.arange(len(starts)), cuts):
        window = slice(starts[block[0]], ends[block[-1]])
        edges = np.cumsum(found.length[block]) - found.length[block]
        blocks.append(_sums(step, window, edges, distance))
    found.sums.update({name: np.concatenate([one[name] for one in blocks]) for name in blocks[0]})
    return distance


def _sums(
    step: Step, window: slice, edges: NDArray[np.int64], distance: Floats | None
) -> dict[str, Floats]:
    """The sums of the turns in a window of tokens; fills `distance` there.

    `edges`: where in the window's generated tokens each turn begins.
    """
    said = step.mask[window]

    def over_turns(values: Floats) -> Floats:
        return np.add.reduceat(values, edges).astype(np.float64)

    sums, logps = {}, {}
    for name in ("rollout", "trainer", "entropy"):
        if getattr(step, name) is not None:
            logps[name] = getattr(step, name)[window][said]
            sums[name] = over_turns(np.where(np.isfinite(logps[name]), logps[name], 0))
    if distance is None:
        return sums
    with np.errstate(invalid="ignore"):
        d = logps["trainer"] - logps["rollout"]
    usable = np.isfinite(d)
    d = np.where(usable, d, 0)
    size = np.abs(d)
    distance[window][said] = size
    sums["signed"] = over_turns(d)
    sums["drift"] = over_turns(size)
    for name, counted in (
        ("compared", usable),
        ("over_1", size > 1),
        ("zero", (d == 0) & usable),
    ):
        sums[name] = over_turns(counted.astype(np.float32))
    np.clip(d, -_CLAMP, _CLAMP, out=d)
    sums["kl"] = over_turns(np.minimum(np.expm1(d) - d, _CEILING))
    return sums


def _age(step: Step, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Floats | None:
    """[K]. A turn is most often of one version, and of two where weights came in between."""
    if step.versions is None or not len(starts):
        return None
    versions = (step.versions[starts] + step.versions[ends - 1]) / 2
    newest = step.version if step.version is not None else float(versions.max())
    return newest - versions


def _contents(
    step: Step,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    distance: Floats | None,
    found: Scan,
) -> None:
    """Fills what needs the tokens themselves."""
    found.digest = _digests(step.tokens, starts, ends)
    lengths = found.length
    order = np.argsort(-lengths, kind="stable")[:LONGEST]
    for turn in np.sort(order[lengths[order] >= LEAST]):
        said = step.tokens[starts[turn] : ends[turn]]
        found.long.append(LongTurn(int(turn), sketch(said), float(in_loops(said).mean())))
    if distance is None:
        return
    found.heat = _heat(distance, starts, ends)
    weights = np.bincount(step.tokens[step.mask], weights=distance[step.mask])
    counts = np.bincount(step.tokens[step.mask])
    top = np.argsort(-weights)[:TYPES]
    found.types.update({int(i): (float(weights[i]), int(counts[i])) for i in top if counts[i]})


def in_loops(tokens: NDArray[np.integer]) -> NDArray[np.bool_]:
    """[T] True on the tokens of shingles that occur REPEATED times or more."""
    _, inverse, counts = np.unique(shingle_hashes(tokens), return_inverse=True, return_counts=True)
    repeated = counts[inverse] >= REPEATED
    covered = np.zeros(len(tokens) + 1, np.int64)
    places = np.flatnonzero(repeated)
    np.add.at(covered, places, 1)
    np.add.at(covered, np.minimum(places + SHINGLE, len(tokens)), -1)
    return np.cumsum(covered)[:-1] > 0


def along(distance: Floats, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Floats:
    """[K, BINS] mean |D| in each part of each turn, whose lengths are at least BINS."""
    total = np.concatenate([[0], np.cumsum(distance, dtype=np.float64)])
    parts = np.arange(BINS + 1) / BINS
    edges = starts[:, None] + ((ends - starts)[:, None] * parts).astype(np.int64)
    return np.diff(total[edges], axis=1) / np.diff(edges, axis=1)


def _heat(distance: Floats, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Floats | None:
    long = ends - starts >= BINS
    return along(distance, starts[long], ends[long]).mean(0) if long.any() else None


def _digests(
    tokens: NDArray[np.integer], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """[K] a polynomial of a turn's tokens, modulo 2**64: chance equals two with odds of 1e-19."""
    lengths = ends - starts
    factors = np.cumprod(np.full(int(lengths.max()), 0x9E3779B97F4A7C15, np.uint64))
    found = np.empty(len(starts), np.uint64)
    ids = (tokens.astype(np.uint64) + np.uint64(1)) * np.uint64(0xBF58476D1CE4E5B9)
    ids ^= ids >> np.uint64(31)
    for turn, (start, end) in enumerate(zip(starts, ends, strict=True)):
        found[turn] = np.dot(ids[start:end], factors[: end - start])
    return found
