"""Sketches against the similarity they estimate."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glm52_tbench2.analysis.sentinel.sketch import SHINGLE, likeness, shingle_hashes, sketch

TOKENS = st.lists(st.integers(0, 150_000), min_size=1, max_size=60)


def shingles(tokens: list[int]) -> Counter[tuple[int, ...]]:
    return Counter(tuple(tokens[i : i + SHINGLE]) for i in range(max(1, len(tokens) - SHINGLE + 1)))


def exact(one: np.ndarray, other: np.ndarray) -> float:
    a, b = shingles(one.tolist()), shingles(other.tolist())
    return (a & b).total() / (a | b).total()


@settings(deadline=None)
@given(TOKENS, TOKENS)
def test_short_sequences_are_compared_exactly(one: list[int], other: list[int]) -> None:
    a, b = np.array(one), np.array(other)
    assert likeness(sketch(a), sketch(b)) == pytest.approx(exact(a, b))


@pytest.mark.parametrize("changed", [0.0, 0.01, 0.05, 0.2, 1.0])
@pytest.mark.parametrize("loop", [0, 2000, 3900])
def test_long_sequences_are_compared_within_the_error_of_a_draw(loop: int, changed: float) -> None:
    """Text whose first part loops, some of it changed."""
    rng = np.random.default_rng(0)
    errors = []
    for _ in range(20):
        one = rng.integers(0, 150_000, 4000)
        one[:loop] = np.tile(rng.integers(0, 150_000, 25), 160)[:loop]
        other = np.where(rng.random(4000) < changed, rng.integers(0, 150_000, 4000), one)
        errors.append(likeness(sketch(one), sketch(other)) - exact(one, other))
    assert np.sqrt(np.mean(np.square(errors))) <= 0.08
    assert abs(np.mean(errors)) <= 0.03


def test_a_loop_has_as_many_shingles_as_its_period() -> None:
    assert len(sketch(np.tile(np.arange(20), 400)).hashes) == 20


def test_shingles_that_differ_have_different_hashes() -> None:
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 3, 50_000)  # many near-identical shingles
    assert len(set(shingle_hashes(tokens).tolist())) == len(shingles(tokens.tolist()))
