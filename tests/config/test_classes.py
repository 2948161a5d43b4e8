"""Every knob has a class that somebody chose."""

import pytest

from glm52_tbench2.config.classes import CLASSES, LABEL, Effect, deciding_prefix, effect, judge
from glm52_tbench2.config.compose import compose, leaves
from glm52_tbench2.config.docs import knob_docs
from glm52_tbench2.config.identity import EXCLUDED


def knobs() -> set[str]:
    """Every leaf of the schema, and every server argument that a config of ours sets."""
    found = set()
    for engine in ("balanced", "low_latency", "cpu", "external"):
        for name, value in leaves(compose([f"engine={engine}"])).items():
            found |= {f"{name}.{key}" for key in value} if isinstance(value, dict) else {name}
    return found | set(leaves(compose([])))


def test_every_knob_is_decided_on() -> None:
    assert [name for name in knobs() if not deciding_prefix(name)] == []


def test_every_entry_decides_on_a_knob() -> None:
    used = {deciding_prefix(name) for name in knobs()} | {
        deciding_prefix(name) for name in knob_docs()
    }
    assert set(CLASSES) - used == set()


@pytest.mark.parametrize(
    ("knob", "expected"),
    [
        ("data.train", Effect.measured),
        ("data.eval", Effect.measured),
        ("eval.temperature", Effect.measured),
        ("rollout.prompts_per_step", Effect.measured),
        ("rollout.max_turn_tokens", Effect.measured),
        ("rollout.mode", Effect.training),
        ("clip.correction_low", Effect.training),
        ("clip.mis.veto", Effect.training),
        ("optim.lr", Effect.training),
        ("seed", Effect.training),
        ("steps", Effect.training),
        ("parallel.tensor", Effect.speed),
        ("engine.url", Effect.measured),
        ("engine.server_args.watchdog-timeout", Effect.speed),
        ("engine.server_args.kv-cache-dtype", Effect.training),
        ("cluster.deadlines.env", Effect.cosmetic),
        ("tracking.wandb", Effect.cosmetic),
        ("a_knob.of_another_version", Effect.training),
    ],
)
def test_the_longest_prefix_decides(knob: str, expected: Effect) -> None:
    assert effect(knob) is expected


def test_what_is_measured_says_why() -> None:
    for name, judgement in CLASSES.items():
        assert bool(judgement.why) == (judgement.effect is Effect.measured), name


def test_training_tasks_leave_held_out_evaluations_comparable() -> None:
    assert not judge("data.train").held_out
    assert judge("data.eval").held_out and judge("rollout.max_turn_tokens").held_out


def test_what_an_identity_leaves_out_decides_no_result() -> None:
    decided = {name: effect(name) for name in EXCLUDED}
    assert {*decided.values()} <= {Effect.speed, Effect.cosmetic}
    assert LABEL in EXCLUDED
