"""The vocabulary of the mini suite: every name and value in a task is one of these words.

A model of a few million parameters copies words it has seen; it does not spell. So a task differs
from its siblings by which words it uses, and a tokenizer can give each word one token.
"""

from random import Random

_TEXT = """
amber anchor apple arrow autumn badge bamboo banana barrel basil beacon berry birch bottle
bridge bronze bucket butter button cabin cactus candle canyon carbon castle cedar cherry
cliff clover cobalt comet copper coral cotton crane crystal daisy desert diamond dragon
eagle falcon feather flint forest fossil garden ginger glacier granite grape hammer harbor
hazel helmet honey island ivory jacket jade jasmine jungle kettle ladder lagoon lantern
laurel lemon linen lotus magnet mango maple marble meadow melon mirror mosaic needle nickel
nutmeg oasis ocean olive onion orbit orchid otter parrot pebble pencil pepper piano pillar
planet pocket prism puzzle quartz rabbit raven ribbon robin rocket saddle salmon satin
shadow silver spruce summit tiger timber topaz tulip tunnel turtle valley velvet walnut
"""

WORDS: tuple[str, ...] = tuple(_TEXT.split())
"""Common lowercase words; none is part of another, so a match for one never finds another."""


def take(rng: Random, count: int) -> list[str]:
    """`count` different words."""
    return rng.sample(WORDS, count)


def column(words: list[str]) -> str:
    """A file with one word a line."""
    return "".join(f"{word}\n" for word in words)
