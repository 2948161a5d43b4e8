import json

import pytest

from glm52_tbench2.rollout.stats import eval_metrics, rollout_metrics

from .make import make_sample


@pytest.fixture
def samples():
    return [
        make_sample(0, 0, reward=1.0),
        make_sample(0, 1, reward=0.0, end_reason="length", turns=1, turn_tokens=10),
        make_sample(1, 0, reward=0.0, end_reason="no_command", turns=1, version=2),
        make_sample(1, 1, reward=0.0, end_reason="budget", version=1),
    ]


def test_rollout_metrics(samples):
    stats = {"wall_s": 4.0, "wasted_tokens": 10, "replaced/engine": 2, "dropped/x": 1}
    found = rollout_metrics(samples, stats, version=2, max_turn_tokens=10)
    expected = {
        "rollout/samples": 4,
        "rollout/reward_mean": 0.25,
        "rollout/reward_std": 0.1875**0.5,
        "rollout/truncated_share": 0.5,
        "rollout/end/length": 0.25,
        "rollout/end/task_complete": 0.25,
        "rollout/end/max_turns": 0,
        "rollout/zero_signal_share": 0.5,
        "rollout/generated_tokens": 6 + 10 + 3 + 6,
        "rollout/turns_mean": 1.5,
        "rollout/turn_tokens_mean": 25 / 6,
        "rollout/near_cap_turns": 1,
        "rollout/staleness_mean": (16 * 2 + 3 * 0 + 6 * 1) / 25,
        "rollout/staleness_max": 2,
        # turns start at 5 and 12, or at 5 alone, and half of each prompt was cached
        "rollout/cached_share": (8 + 2 + 2 + 8) / (17 + 5 + 5 + 17),
        "rollout/wasted_tokens": 10,
        "rollout/wasted_share": 10 / 35,
        "rollout/tokens_per_s": 35 / 4,
        "rollout/generate_share": 0.5,
        "rollout/sandbox_share": 0.25,
        "rollout/verify_share": 0.25,
        "rollout/replaced/engine": 2,
        "rollout/dropped/x": 1,
        "time/rollout_s": 4.0,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    json.dumps(found, allow_nan=False)


def test_a_group_is_without_signal_when_its_rewards_are_equal():
    rewards = [[1, 1], [0, 0], [0, 1], [1]]
    samples = [
        make_sample(group, index, reward=reward)
        for group, members in enumerate(rewards)
        for index, reward in enumerate(members)
    ]
    found = rollout_metrics(samples, {"wall_s": 1.0}, 0, 10)
    assert found["rollout/zero_signal_share"] == 3 / 4


def test_ends_of_the_policy_add_up(samples):
    found = rollout_metrics(samples, {"wall_s": 1.0}, 0, 10)
    assert sum(v for k, v in found.items() if k.startswith("rollout/end/")) == pytest.approx(1)


def test_eval_metrics(samples):
    found = eval_metrics(samples, {"wall_s": 1.0, "missing": 3})
    assert found["eval/reward_mean"] == 0.25 and found["eval/missing"] == 3
    assert not any(name.startswith("rollout/") for name in found)
