import pytest

from glm52_tbench2.config.checks import KNOWN_FILTERS
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.paths import ROOT
from glm52_tbench2.rollout.filters import FILTERS, dropped_by, named
from glm52_tbench2.rollout.outcome import OUTCOMES, Cause, EndReason, Verdict, has_verdict

from .make import make_sample


def group(rewards, ends=None):
    ends = ends or ["task_complete"] * len(rewards)
    return [
        make_sample(0, i, reward=r, end_reason=e)
        for i, (r, e) in enumerate(zip(rewards, ends, strict=True))
    ]


@pytest.mark.parametrize(
    ("names", "samples", "dropped"),
    [
        ([], group([0, 0]), None),
        (["check_no_aborted"], group([0, 0]), None),
        (["check_no_aborted"], group([0, float("nan")], ["length", "sandbox"]), "check_no_aborted"),
        (["check_reward_nonzero_std"], group([0, 1]), None),
        (["check_reward_nonzero_std"], group([1, 1]), "check_reward_nonzero_std"),
        (["check_reward_nonzero_std"], group([1]), "check_reward_nonzero_std"),
        (list(FILTERS), group([0, 0], ["length", "engine"]), "check_no_aborted"),
    ],
)
def test_groups_are_dropped_by_the_first_filter_that_refuses(names, samples, dropped):
    assert dropped_by(samples, named(names)) == dropped


def test_a_penalty_is_a_signal():
    samples = group([1, 1])
    samples[0].penalty = -0.5
    assert dropped_by(samples, named(["check_reward_nonzero_std"])) is None


def test_an_unknown_filter_is_told_with_the_known_ones():
    with pytest.raises(UserError, match=r"'check_nothing'.*check_no_aborted"):
        named(["check_nothing"])


def test_a_config_may_name_exactly_these():
    assert set(KNOWN_FILTERS) == set(FILTERS)


def test_every_end_has_an_outcome_and_the_policy_alone_gets_a_verdict():
    assert set(OUTCOMES) == set(EndReason)
    for reason, outcome in OUTCOMES.items():
        assert has_verdict(reason) == (outcome.cause is Cause.policy)
        assert (outcome.verdict is Verdict.none) == (outcome.cause is not Cause.policy)


def test_the_docs_have_the_same_table():
    page = (ROOT / "docs" / "episodes.md").read_text()
    for reason, outcome in OUTCOMES.items():
        cells = (f"`{reason}`", outcome.doc, outcome.cause, outcome.verdict)
        assert f"| {' | '.join(cells)} |" in page
    assert page.count("\n| `") == len(OUTCOMES)
