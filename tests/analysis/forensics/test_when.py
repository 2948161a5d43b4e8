"""A verdict is on the run's end, its steps and its scores: not on what is over, or not there."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from glm52_tbench2.analysis.forensics import verb
from glm52_tbench2.analysis.forensics.examine import examine
from glm52_tbench2.analysis.forensics.measures import numbers
from glm52_tbench2.analysis.forensics.scan import scan
from glm52_tbench2.analysis.forensics.verdict import Verdict, verdict
from glm52_tbench2.analysis.stats import Rewards
from glm52_tbench2.config.schema import Sign

from .made import CAP, SAMPLES, MadeUp, Of, made_up, seen

SOLVED = (1.0,) * SAMPLES
SPLIT = (0.0, 1.0) * (SAMPLES // 2)


def held_out(level: float) -> Rewards:
    return {f"task{number}": [level] for number in range(12)}


def growing(step: int, since: int, until: int = 10**9) -> float:
    return 0.02 * 1.25 ** max(0, step - since) if step <= until else 0.02


OVER = {
    "truncation": made_up(50, lambda s: Of(truncated=4 if 20 < s < 27 else 0)),
    "entropy": made_up(60, lambda s: Of(entropy=0.5 * 0.85 ** max(0, s - 15) if s < 32 else 0.5)),
    "mismatch": made_up(60, lambda s: Of(drift=growing(s, 15, 32))),
    "gradient": made_up(
        40, metrics={s: {"trainer/grad_norm": 0.3 * (not 20 <= s < 23)} for s in range(1, 41)}
    ),
    "held-out tasks": made_up(
        40, evals={at: held_out(float(at != 20)) for at in (0, 10, 20, 30, 40)}
    ),
}


@pytest.mark.parametrize("what", OVER)
def test_what_is_over_is_no_mechanism(what: str) -> None:
    found = examine(OVER[what])
    assert {one.sign for one in found.measures.alarms} - {"visits"}, "nothing was to be seen"
    said = verdict(found)
    assert said.name == "healthy", said.sentence
    assert said.against, "what was is not told"


def test_recurring_turns_that_do_not_drift() -> None:
    """A loop that fails again and again is no divergence as long as its |D| stays where it was."""
    found = seen(40, lambda s: Of(drift=1e-6, loop=2, loop_drift=1e-6 if s < 20 else 3e-6))
    assert len(found.families) == 1
    assert not any(one.told for one in verdict(found).findings)


def test_loops_that_ended() -> None:
    """Their drift is no cause of what is there 20 steps later."""
    found = seen(40, lambda s: Of(loop=2 if s <= 20 else 0, loop_drift=growing(s, 5)))
    assert found.families
    assert verdict(found).name != "repeated_negative_turns"


def test_experiment_reaches_the_onset() -> None:
    """Turns that recur from the first step and drift from the 30th: the test runs beyond that."""
    said = verdict(seen(55, lambda s: Of(loop=2, loop_drift=growing(s, 30))))
    assert said.name == "repeated_negative_turns"
    assert said.account.since is not None
    assert 28 <= said.account.since <= 34
    assert steps_of(said) == said.account.since + 20


def test_held_out_loss_from_the_start() -> None:
    """Step 0 is a step: the best evaluation was that of the untrained model."""
    said = verdict(seen(60, evals={0: held_out(1.0), 30: held_out(0.5), 60: held_out(0.0)}))
    assert said.name == "overfitting"
    assert said.account.since == 0
    assert steps_of(said) == 30


def test_held_out_loss_is_told_from_the_last_evaluation_that_held() -> None:
    """Not from the best of many alike; and the test reaches the one that shows the loss."""
    levels = {0: 0.2, 10: 1.0, 20: 0.9, 40: 0.95, 80: 0.1, 90: 0.0}
    said = verdict(seen(90, evals={step: held_out(level) for step, level in levels.items()}))
    assert said.name == "overfitting"
    assert said.account.since == 40
    assert steps_of(said) == 80


LOST = {0: held_out(0.0), 30: held_out(1.0), 60: held_out(0.0)}


def test_reward_that_is_lost() -> None:
    """Whatever is lost on held-out tasks with it is no overfitting, and a mismatch that went before
    and has calmed is where it began."""
    gone = (0.0,) * SAMPLES
    said = verdict(
        seen(70, lambda s: Of(growing(s, 20, 42), SPLIT if s < 40 else gone), evals=LOST)
    )
    assert said.name == "reward_collapse", said.sentence
    assert said.account.since in range(18, 26)
    assert steps_of(said) >= 60
    assert "overfitting" not in {one.mechanism.name for one in said.findings if one.told}


def test_reward_that_is_lost_while_the_mismatch_is_calm() -> None:
    """A sandbox or a verifier that broke looks the same: both are told."""
    said = verdict(seen(70, lambda s: Of(rewards=SPLIT if s < 40 else (0.0,) * 8), evals=LOST))
    told = [one.mechanism.name for one in said.findings if one.told]
    assert told == ["reward_collapse", "no_signal"]


def test_groups_that_agree_and_were_never_solved() -> None:
    """Told as such: no correction keeps the gradient away, so none is tried without one."""
    metrics = {s: {"trainer/grad_norm": 0.0} for s in range(1, 31)}
    said = verdict(seen(30, lambda s: Of(rewards=(0.0,) * SAMPLES), metrics=metrics))
    assert [one.mechanism.name for one in said.findings if one.told] == ["no_signal"]
    assert said.experiment is not None and "data=train69" in said.experiment.command
    assert "not 0" not in str(said.findings)


def test_nothing_is_trained_since() -> None:
    """Told are the first step without a gradient, and a test that has that step."""
    metrics = {s: {"trainer/grad_norm": 0.3 if s < 15 else 0.0} for s in range(1, 31)}
    said = verdict(seen(30, metrics=metrics))
    assert said.name == "nothing_trained"
    assert said.account.since == 15
    assert steps_of(said) == 18


def test_last_step_untrained() -> None:
    """Of a run that goes on the newest step has no log-probs yet: the guilty turns stay first."""
    make = {
        trained: seen(
            30,
            lambda s, end=30 - (not trained): Of(
                loop=2, loop_drift=growing(s, 10), scored=s <= end
            ),
        )
        for trained in (True, False)
    }
    for found in make.values():
        assert found.families[0].near_cap_share == 1
        assert verdict(found).name == "repeated_negative_turns"


@pytest.mark.parametrize("scored", [0, 1, 13])
def test_too_few_scores_to_be_healthy(scored: int) -> None:
    said = verdict(seen(30, lambda s: Of(scored=s > 30 - scored)))
    assert said.name == "undetermined"
    assert "log-probs of both sides" in said.sentence


LOST_SCORES = "log-probs of both sides are missing or not finite in"
BARE = {
    f"{LOST_SCORES} 6 of the last 10": lambda s: Of(scored=s < 25),
    f"{LOST_SCORES} 10 of the last 10": lambda s: Of(broken=float(s >= 20)),
    "log-probs of 1.0% of the tokens at the end": lambda s: Of(broken=0.01 * (s >= 20)),
    "rewards are missing or not finite in 6 of the last 10": lambda s: Of(
        rewards=SPLIT if s < 25 else (float("nan"),) * SAMPLES
    ),
}


@pytest.mark.parametrize("told", BARE)
def test_an_end_that_is_not_known_is_not_healthy(told: str) -> None:
    said = verdict(seen(30, BARE[told]))
    assert (said.name, said.healthy) == ("undetermined", False), said.sentence
    assert told in said.sentence
    assert any("missing" in one for one in said.unknown)


def test_too_few_steps_to_see_growth() -> None:
    assert verdict(seen(13)).name == "undetermined"
    assert verdict(seen(14)).name == "healthy"


def test_a_run_that_learns() -> None:
    """Entropy falls and groups come to agree because tasks are solved: neither is a collapse."""
    entropy = {s: 0.5 * 0.93 ** max(0, s - 12) for s in range(1, 61)}
    learning = (0.0,) * 4 + (0.0, 1.0, 1.0, 1.0)
    found = seen(40, lambda s: Of(entropy=entropy[s], rewards=learning if s < 20 else SPLIT))
    said = verdict(found)
    assert "entropy" in found.measures.open
    assert said.name == "healthy", said.sentence
    assert "entropy" in said.sentence
    found = seen(60, lambda s: Of(entropy=entropy[s], rewards=SPLIT if s < 40 else SOLVED))
    said = verdict(found)
    assert said.name == "saturation" and said.healthy, said.sentence
    found = seen(60, lambda s: Of(entropy=entropy[s]))
    assert verdict(found).name == "entropy_collapse"


BEGUN = (0.0,) * 5 + (1.0,) * 3


def test_solved_tasks_are_told_by_the_whole_end() -> None:
    """Three steps in a row in which all groups agree come and go by chance."""
    often = seen(40, lambda s: Of(rewards=BEGUN if s < 20 else SPLIT if s % 3 == 0 else SOLVED))
    assert Sign.zero_signal.name not in {one.sign for one in often.measures.alarms}
    said = verdict(often)
    assert (said.name, said.healthy) == ("saturation", True), said.sentence
    assert said.account.since in range(16, 23)
    lately = seen(40, lambda s: Of(rewards=BEGUN if s < 20 else SPLIT if s < 38 else SOLVED))
    assert Sign.zero_signal.name in lately.measures.open
    said = verdict(lately)
    assert (said.name, said.healthy) == ("healthy", True), said.sentence


@pytest.mark.parametrize(
    ("rewards", "code", "said"),
    [(SOLVED, 0, "Healthy, but"), ((0.0,) * SAMPLES, 1, "Not healthy:")],
)
def test_exit_code_where_groups_agree(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rewards: tuple[float, ...],
    code: int,
    said: str,
) -> None:
    """All tasks solved is well; all of them lost is not, though neither has a gradient left."""
    run = made_up(40, lambda s: Of(rewards=BEGUN if s < 20 else rewards))
    monkeypatch.setattr(verb, "_source", lambda path: run)
    assert verb.run(Path(), None, as_text=True) == code
    assert capsys.readouterr().out.startswith(said)


def test_solved_tasks_excuse_no_other_sign() -> None:
    found = seen(40, lambda s: Of(growing(s, 25) / 100, BEGUN if s < 20 else SOLVED))
    assert found.measures.open >= {"mismatch_growth", "zero_signal"}
    said = verdict(found)
    assert (said.name, said.healthy) == ("undetermined", False)
    assert "mismatch_growth" in said.sentence
    assert any("as far as they go" in told for told in said.against)


def test_a_sign_is_told_as_the_run_ends() -> None:
    """Not as it was when its alarm opened."""
    few, none = (1.0, *(0.0,) * 7), (0.0,) * SAMPLES
    evals = {30: held_out(1.0), 50: held_out(0.4), 60: held_out(0.0)}
    found = seen(
        60, lambda s: Of(rewards=SPLIT if s <= 40 else few if s <= 46 else none), evals=evals
    )
    told = {sign: found.measures.sign(sign) for sign in (Sign.reward_collapse, Sign.held_out_churn)}
    assert all(told.values())
    assert "is 0.00 over the last 6" in told[Sign.reward_collapse].sentence
    assert told[Sign.reward_collapse].since == 41
    assert "to 0.000 after 60" in told[Sign.held_out_churn].sentence
    over = seen(40, lambda s: Of(rewards=SOLVED if 30 <= s < 36 else SPLIT))
    agree = over.measures.sign(Sign.zero_signal)
    assert agree is not None and agree.sentence.startswith("at step 32: In each of the last 3")


def test_groups_carry_signal_where_their_samples_are_pushed() -> None:
    """Rewards that are equal may differ by their penalty, and rewards that differ give no signal
    under some advantages: A decides, and rewards where it is unknown."""
    pushed = seen(1, lambda s: Of(rewards=SOLVED, loop=2))
    assert pushed.measures.series[1]["silent"] == 0.5
    step = made_up(1, lambda s: Of(rewards=SPLIT)).read(1)
    for advantages, share in ((None, 0.0), (np.full(SAMPLES, 1e-9), 1.0)):
        assert numbers(scan(replace(step, advantages=advantages)), CAP)["silent"] == share
    equal = replace(step, rewards=np.ones(SAMPLES), advantages=None)
    assert numbers(scan(equal), CAP)["silent"] == 1.0


def test_evaluations_outside_the_steps() -> None:
    """--step 1:20 is judged by what was known then."""
    evals = {at: held_out(float(at < 40)) for at in (0, 20, 40)}
    run = made_up(40, evals=evals)
    assert verdict(examine(run)).name == "overfitting"
    early = examine(run, range(1, 21))
    assert sorted(early.about.evals) == [0, 20]
    assert verdict(early).name == "healthy"
    assert sorted(examine(run, range(21, 41)).about.evals) == [20, 40]


def test_one_evaluation_tells_nothing() -> None:
    said = verdict(seen(40, evals={0: held_out(1.0)}))
    assert any("two evaluations" in one for one in said.unknown)
    assert said.confidence == "likely"


@pytest.mark.parametrize("loops", [1, 3])
def test_cap_of_a_foreign_run(loops: int) -> None:
    """Some longest turns of one length show it; one alone does not."""
    run: MadeUp = made_up(1, lambda s: Of(loop=loops), known=False)
    found = examine(run)
    assert found.measures.cap == (CAP if loops > 2 else np.inf)
    assert found.measures.series[1]["giant_turns"] == (loops if loops > 2 else 0)


def steps_of(said: Verdict) -> int:
    assert said.experiment is not None
    return int(said.experiment.command.rpartition("steps=")[2].split()[0])
