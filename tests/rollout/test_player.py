"""What the player counts."""

import asyncio
from types import SimpleNamespace

import pytest

from glm52_tbench2.config.compose import compose
from glm52_tbench2.rollout import player as player_module
from glm52_tbench2.rollout.player import Player, Wanted


def test_tokens_a_second_count_from_the_first_sample_and_with_what_was_cut_off(monkeypatch):
    """Not from the driver's start, since it waits for engines to load."""
    now = [0.0]
    monkeypatch.setattr(player_module, "perf_counter", lambda: now[0])
    found = Player(
        compose(["experiment=smoke"]), None, None, SimpleNamespace(phase="", in_flight=0)
    )
    assert found.tokens_per_s(60.0) == 0.0

    async def attempt(*asked):
        now[0] += 10.0
        return SimpleNamespace(
            num_generated=30, discarded_tokens=20, end_reason="timeout", reward=0.0
        )

    monkeypatch.setattr(found, "_try", attempt)
    now[0] = 1000.0
    asyncio.run(found.obtain(Wanted(1, 0, 0, "task", (1, 0, 0), 0), limits=None))
    assert found.tokens_per_s(60.0) == pytest.approx(50 / 10)
