"""Every planted mechanism is named, with its onset, tasks and turns; a healthy run is not."""

import re
from itertools import product

import pytest

from glm52_tbench2.analysis.diff.sides import plain_knobs
from glm52_tbench2.analysis.forensics.evidence import (
    Account,
    Evidence,
    Finding,
    Mechanism,
    confidence,
)
from glm52_tbench2.analysis.forensics.mechanisms import MECHANISMS
from glm52_tbench2.analysis.forensics.verdict import override, verdict
from glm52_tbench2.config.compose import compose

from .conftest import ONSET, STEPS, Planted, examined

EXPECTED = {
    "healthy": "healthy",
    "stale": "staleness",
    "engine": "engine_numerics",
    "churn": "overfitting",
    "collapse": "entropy_collapse",
    "length": "length_explosion",
    "silent": "nothing_trained",
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_mechanism_is_named(planted: Planted, kind: str) -> None:
    said = verdict(examined(planted(kind)))
    assert said.name == EXPECTED[kind], said.findings
    assert said.confidence
    if kind in ("stale", "engine"):
        assert said.account.since in (ONSET, ONSET + 1)
    if kind == "healthy":
        assert not any(one.told for one in said.findings)


def test_published_divergence(planted: Planted) -> None:
    """Onset, tasks, turns and tokens are those that were planted."""
    found = examined(planted("repeated"))
    said = verdict(found)
    assert said.name == "repeated_negative_turns"
    assert said.confidence == "very likely"
    failing = {"adaptive-rejection-sampler", "bn-fit-modify"}
    assert set(said.account.tasks) == failing
    # Told once the drift is clearly above its beginning, at 15 % a step.
    assert said.account.since in range(ONSET, ONSET + 4)
    assert all(re.fullmatch(r"0000\d\d-[01]-\d turn \d+", turn) for turn in said.account.turns)
    assert len(found.families) == 2
    for one in found.families:
        assert one.steps[0] >= ONSET
        assert one.steps[-1] >= STEPS - 1
        assert one.near_cap_share == one.truncated_share == one.negative_share == 1
        assert one.likeness >= 0.8
        assert one.advantage is not None and one.advantage < 0
        assert one.last_drift is not None and one.first_drift is not None
        assert one.last_drift > 2 * one.first_drift
        # The planted walk: the trainer's log-prob of the content falls from visit to visit.
        changes = [move.trainer_change for move in one.moves if move.trainer_change is not None]
        assert sum(changes) < -0.1
        assert one.in_loop is not None and one.outside is not None
        assert one.in_loop > one.outside
        assert one.excerpt
    assert sum(one.drift_share or 0 for one in found.families) > 0.2
    assert said.experiment is not None
    assert said.experiment.command.endswith("sentinel=mask")


@pytest.mark.parametrize(
    ("experiment", "mechanism"), list(product(("job2350", "smoke"), MECHANISMS))
)
def test_experiments_compose(experiment: str, mechanism: Mechanism) -> None:
    config = compose([f"experiment={experiment}"])
    words = override(config, mechanism, 30)
    if words is None:  # its set is the largest of its suite, its weights fresh, its engine exact
        exhausted = ("overfitting", "saturation", "staleness", "engine_numerics")
        assert experiment == "smoke" and mechanism.name in exhausted
        return
    assert compose(words) != config


@pytest.mark.parametrize(
    ("run", "mechanism", "test"),
    [
        ("experiment=job2350", "staleness", "rollout.max_staleness=0"),
        ("experiment=smoke rollout.lag=2", "staleness", "rollout.lag=0"),
        ("experiment=smoke rollout.lag=2", "reward_collapse", "rollout.lag=0"),
        ("experiment=smoke", "reward_collapse", "optim.lr=1.0e-04"),
        ("experiment=smoke engine.dtype=fp8_rounded", "engine_numerics", "engine.dtype=bfloat16"),
        ("experiment=smoke engine.dtype=bfloat16", "engine_numerics", "engine.dtype=float32"),
        ("experiment=smoke clip=icepop", "length_explosion", "clip.overlong=mask"),
        ("experiment=smoke clip=dppo", "nothing_trained", "clip.correction=none"),
        ("experiment=smoke", "no_signal", "rollout.samples_per_prompt=8"),
    ],
)
def test_an_experiment_leads_on_from_its_run(run: str, mechanism: str, test: str) -> None:
    config = compose(run.split())
    words = override(config, next(one for one in MECHANISMS if one.name == mechanism), 30)
    assert words is not None and test in words
    expected, found = plain_knobs(config), plain_knobs(compose(words))
    changed = {name for name in expected if expected[name] != found[name]} - {"name", "steps"}
    assert changed == {test.partition("=")[0]}


def test_an_experiment_changes_more_than_the_name() -> None:
    """A run on its suite's largest set, under a name of its own: there is no larger set to try."""
    config = compose(["experiment=smoke", "data=mini69", "name=mine", "seed=2"])
    more = next(one for one in MECHANISMS if one.name == "saturation")
    assert override(config, more, 30) is None


def test_score() -> None:
    """The weight that holds over all weight; what is unknown does not hold, what is needed must."""

    def score(*pieces: tuple[float, bool | None, bool]) -> float:
        evidence = [Evidence("", weight, holds, "", needed) for weight, holds, needed in pieces]
        return Finding(MECHANISMS[0], evidence, Account()).score

    assert score((3, True, True), (1, False, False)) == 0.75
    assert score((1, True, False), (1, None, False)) == 0.5
    assert score((1, True, False), (9, None, True)) == 0
    assert score((1, True, False), (9, False, True)) == 0
    assert [confidence(one) for one in (0.9, 0.7, 0.5, 0.49)] == [
        "very likely",
        "likely",
        "possible",
        "",
    ]
