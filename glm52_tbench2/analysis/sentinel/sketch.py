"""Near-identical token sequences, found without comparing every pair.

A sequence is the multiset of its shingles, SHINGLE tokens in a row. Two are as alike as these are:
the weighted Jaccard similarity, sum of the smaller counts over sum of the larger. So a loop that
is left for a word now and then stays the same loop.

A sketch is a sample of the multiset that two sequences draw alike: each shingle has a number e,
exponentially distributed and made of its hash, and the SIZE smallest e / count are kept (priority
sampling, Duffield et al. 2007, by coordinated draws). A sequence of at most SIZE different
shingles, as a loop, is kept whole.
"""

import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SHINGLE = 8
SIZE = 128

Hashes = NDArray[np.uint64]

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_SHIFT = np.uint64(31)


@dataclass(frozen=True)
class Sketch:
    """A sample of a sequence's shingles."""

    hashes: list[int]
    """Rising."""
    counts: list[int]
    """How often each occurs in the sequence."""
    threshold: float
    """e / count of what is kept is below; the largest float where everything is kept."""


def shingle_hashes(tokens: NDArray[np.integer]) -> Hashes:
    """Hash of each shingle: [T] token ids -> [T - SHINGLE + 1] uint64.

    A sequence shorter than a shingle has one: itself.
    """
    ids = tokens.astype(np.uint64) + np.uint64(1)
    count = max(1, len(ids) - SHINGLE + 1)
    found = np.zeros(count, np.uint64)
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64
        for offset in range(min(SHINGLE, len(ids))):
            found = found * _FACTOR + ids[offset : offset + count]
        # A polynomial's values are not a fair draw.
        found = (found ^ (found >> _SHIFT)) * _MIX
        return found ^ (found >> _SHIFT)


def sketch(tokens: NDArray[np.integer]) -> Sketch:
    """The sketch of [T] token ids."""
    hashes, counts = np.unique(shingle_hashes(tokens), return_counts=True)
    if len(hashes) <= SIZE:
        return Sketch(hashes.tolist(), counts.tolist(), sys.float_info.max)
    keys = _exponential(hashes) / counts
    chosen = np.argpartition(keys, SIZE)
    kept = np.sort(chosen[:SIZE])
    return Sketch(hashes[kept].tolist(), counts[kept].tolist(), float(keys[chosen[SIZE]]))


def likeness(one: Sketch, other: Sketch) -> float:
    """Estimated weighted Jaccard similarity; exact where both are kept whole.

    A shingle of count m is sampled with probability p = 1 - exp(-threshold m), so m / p estimates
    its count (Horvitz & Thompson 1952); with m the smaller of both counts over those in both
    samples, it sums to the common part, with the larger one over those in any to the union.
    """
    hashes = np.union1d(np.array(one.hashes, np.uint64), np.array(other.hashes, np.uint64))
    threshold = min(one.threshold, other.threshold)
    here, there = _counts(one, hashes), _counts(other, hashes)
    draws = _exponential(hashes)

    def total(counts: NDArray[np.int64]) -> float:
        with np.errstate(over="ignore"):  # of the largest float
            kept = counts[(counts > 0) & (draws < threshold * counts)]
            return float((kept / -np.expm1(-threshold * kept)).sum())

    return total(np.minimum(here, there)) / max(total(np.maximum(here, there)), 1e-9)


def _counts(sketch: Sketch, hashes: Hashes) -> NDArray[np.int64]:
    """Of `hashes`, which hold all of the sketch's: how often each occurs in it."""
    found = np.zeros(len(hashes), np.int64)
    found[np.searchsorted(hashes, np.array(sketch.hashes, np.uint64))] = sketch.counts
    return found


def _exponential(hashes: Hashes) -> NDArray[np.float64]:
    """A draw from the exponential distribution of mean 1 for each hash."""
    with np.errstate(over="ignore"):
        mixed = (hashes ^ (hashes >> _SHIFT)) * _FACTOR
    uniform = ((mixed >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return -np.log(uniform)
