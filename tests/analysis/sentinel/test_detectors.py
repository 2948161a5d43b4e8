"""Each sign alone: found where it is, with its evidence, and not in a healthy run."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from glm52_tbench2.analysis.sentinel.detectors import DETECTORS
from glm52_tbench2.analysis.sentinel.facts import StepFacts, observe
from glm52_tbench2.analysis.sentinel.history import History
from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.schema import Sign

CONFIG = compose(["experiment=smoke"])
CAP = 1000
TASKS = [f"task-{number}" for number in range(24)]


class Made:
    """Steps of a run of 3 groups of 4 samples, healthy but for what a test changes."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.history = History(CONFIG.sentinel.similarity)
        self.loop = np.tile(self.rng.integers(0, 9000, 40), 100)
        """What a policy says that loops."""

    def sample(self, step: int, group: int, index: int, task: str, **changes: Any) -> Any:
        length = int(self.rng.integers(20, 200))
        about = {"said": self.rng.integers(0, 9000, length), "reward": float(index % 2)} | changes
        tokens = np.concatenate([np.arange(10), about.pop("said")])
        mask = np.arange(len(tokens)) >= 10
        return SimpleNamespace(
            **{
                "sample_id": f"{step:06d}-{group}-{index}",
                "task_id": task,
                "advantage": about["reward"] - 0.5,
                "truncated": False,
                "tokens": tokens,
                "loss_mask": mask,
                "rollout_logprobs": np.where(mask, -1.0, 0.0).astype(np.float32),
                "turns": [SimpleNamespace(start=10, end=len(tokens))],
                **about,
            }
        )

    def giant(self, step: int, group: int, task: str, **changes: Any) -> Any:
        """A failed sample that loops up to the cap, and leaves the loop for a word at times."""
        said = self.loop[:CAP].copy()
        said[:: self.rng.integers(250, 300)] = self.rng.integers(0, 9000)
        return self.sample(
            step, group, 0, task, **{"said": said, "truncated": True, "reward": 0.0, **changes}
        )

    def step(
        self,
        samples: Callable[[int], list[Any]] = lambda step: [],
        drift: float = 0.02,
        **metrics: float,
    ) -> StepFacts:
        step = len(self.history.steps) + 1
        tasks = [TASKS[(3 * step + group) % len(TASKS)] for group in range(3)]
        batch = [
            self.sample(step, group, index, task)
            for group, task in enumerate(tasks)
            for index in range(4)
        ] + samples(step)
        logps = [
            s.rollout_logprobs + self.rng.laplace(0, drift, len(s.tokens)).astype(np.float32)
            for s in batch
        ]
        healthy = {
            "trainer/train_rollout_kl": float(self.rng.uniform(0.022, 0.054)),
            "trainer/mismatch/abs_mean": float(self.rng.uniform(0.06, 0.1)),
            "trainer/entropy": float(self.rng.uniform(0.4, 0.6)),
            "trainer/grad_norm": 0.3,
            "trainer/update_norm": 0.01,
            "trainer/weight_zero_share": 0.01,
            "trainer/mismatch/zero_share": 0.1,
        }
        named = {f"trainer/{name.replace('__', '/')}": value for name, value in metrics.items()}
        facts = observe(step, batch, logps, healthy | named, CAP)
        self.history.add(facts)
        return facts

    def found(self) -> dict[Sign, str]:
        return {
            sign: finding.sentence
            for sign, detect in DETECTORS.items()
            if (finding := detect(self.history, CONFIG.sentinel)) is not None
        }


@pytest.fixture
def made() -> Made:
    run = Made()
    for _ in range(20):
        run.step()
        assert run.found() == {}
    return run


def test_a_healthy_run_shows_no_sign(made: Made) -> None:
    for _ in range(60):
        made.step()
        assert made.found() == {}


@pytest.mark.parametrize("name", ["train_rollout_kl", "mismatch__abs_mean"])
def test_mismatch_growth(made: Made, name: str) -> None:
    for number in range(12):
        made.step(**{name: 0.06 * 1.15**number})
    assert "doubling every" in made.found().pop(Sign.mismatch_growth)


def test_capped_burst_is_seen_where_the_overall_mismatch_hides_it(made: Made) -> None:
    for _ in range(6):
        made.step(mismatch__turn_near_cap__abs_mean=0.1, mismatch__turn_near_cap__token_share=0.1)
    assert Sign.capped_burst not in made.found()
    for _ in range(6):
        made.step(mismatch__turn_near_cap__abs_mean=0.9, mismatch__turn_near_cap__token_share=0.1)
    found = made.found()
    assert set(found) == {Sign.capped_burst}
    assert "0.90" in found[Sign.capped_burst] and "10.0%" in found[Sign.capped_burst]


def test_capped_drift_from_the_beginning_is_told_once_it_lasts(made: Made) -> None:
    levels = [0.1, 0.1, *[0.5] * 10]
    for number, level in enumerate(levels):
        made.step(mismatch__turn_near_cap__abs_mean=level, mismatch__turn_near_cap__token_share=0.1)
        found = made.found()
        assert (Sign.capped_burst in found) == (number >= 7)
    assert "since step 23" in found[Sign.capped_burst]
    assert "in each of 10 steps" in found[Sign.capped_burst]


def test_capped_drift_that_is_usual_is_no_burst(made: Made) -> None:
    for number in range(30):
        level = 0.4 if number % 7 else 0.2  # above the limit as a rule, not always
        made.step(mismatch__turn_near_cap__abs_mean=level, mismatch__turn_near_cap__token_share=0.1)
        found = made.found()
        assert (Sign.capped_burst in found) == (number == 6)


def test_negative_truncated(made: Made) -> None:
    split = "mismatch__advantage_negative_truncated__"
    for number in range(8):
        made.step(**{
            f"{split}abs_mean": 0.1 if number < 5 else 0.45,
            f"{split}token_share": 0.2,
            "mismatch__abs_mean": 0.1 if number < 5 else 0.125,
        })  # fmt: skip
    found = made.found()
    assert set(found) == {Sign.negative_truncated}
    assert "72%" in found[Sign.negative_truncated] and "20%" in found[Sign.negative_truncated]


def test_negative_truncated_is_told_above_what_healthy_runs_have_alone(made: Made) -> None:
    """In two healthy runs of the study it went up to 0.049, three times the usual."""
    split = "mismatch__advantage_negative_truncated__"
    for number in range(16):
        level = 0.016 if number < 5 else 0.05 if number < 10 else 0.13
        made.step(**{f"{split}abs_mean": level, f"{split}token_share": 0.2},
                  mismatch__abs_mean=level / 3.6)  # fmt: skip
        assert (Sign.negative_truncated in made.found()) == (number >= 12)


@pytest.mark.parametrize(("earlier", "apart"), [(5, 20), (4, 1)])
def test_negative_truncated_needs_what_is_usual_and_steps_that_are_close(
    made: Made, earlier: int, apart: int
) -> None:
    split = "mismatch__advantage_negative_truncated__"
    for number in range(earlier + 3):
        for _ in range(apart - 1):
            made.step()
        level = 0.1 if number < earlier else 0.45
        made.step(**{f"{split}abs_mean": level, f"{split}token_share": 0.2},
                  mismatch__abs_mean=level / 3.6)  # fmt: skip
        assert Sign.negative_truncated not in made.found()


def test_sign_persistent_and_repetition_name_the_task(made: Made) -> None:
    for visit in range(1, 6):
        made.step(lambda step: [made.giant(step, 9, "stubborn")], drift=0.05 * visit)
        found = made.found()
        assert (Sign.repetition in found) == (visit >= 3)
        assert (Sign.sign_persistent in found) == (visit >= 5)
    assert all("stubborn" in sentence for sentence in found.values())
    assert "5 steps since step 21" in found[Sign.repetition]


@pytest.mark.parametrize("drifts", [[0.02] * 6, [0.02, 0.05, 0.11, 0.11], [0.4] * 6])
def test_giant_turns_that_recur_but_do_not_drift_away_are_no_repetition(
    made: Made, drifts: list[float]
) -> None:
    """As in every healthy run: a task that is not solved yet loops, and is pushed down."""
    for drift in drifts:
        made.step(lambda step: [made.giant(step, 9, "stubborn")], drift=drift)
        assert Sign.repetition not in made.found()


def test_giant_turns_that_differ_or_are_rewarded_are_no_repetition(made: Made) -> None:
    for visit in range(6):
        made.step(lambda step: [
            made.giant(step, 8, "new-each-time", said=made.rng.integers(0, 9000, CAP)),
            made.giant(step, 9, "rewarded", advantage=0.5),
        ], drift=0.05 * visit)  # fmt: skip
    assert Sign.repetition not in made.found()


def test_visits(made: Made) -> None:
    for _ in range(180):
        made.step()
    assert Sign.visits in made.found()
    assert "24 tasks" in made.found()[Sign.visits]


@pytest.mark.parametrize(
    ("levels", "word"),
    [
        ([0.5 * 1.2**number for number in range(12)], "rises since step"),
        ([0.5 / 1.2**number for number in range(12)], "collapses since step"),
        ([0.0] * 6, "to 1e-06 nats"),
    ],
)
def test_entropy(made: Made, levels: list[float], word: str) -> None:
    for level in levels:
        made.step(entropy=level)
    assert word in made.found()[Sign.entropy]


def test_entropy_that_halves_is_no_collapse(made: Made) -> None:
    """As it does early in a run that learns."""
    for number in range(30):
        made.step(entropy=max(0.15, 0.5 / 1.2**number))
        assert made.found() == {}


def test_length(made: Made) -> None:
    for _ in range(3):
        made.step(lambda step: [
            made.sample(step, 9, index, "cut", truncated=True) for index in range(12)
        ])  # fmt: skip
    assert "50%" in made.found()[Sign.length] and "usually 0%" in made.found()[Sign.length]


@pytest.mark.parametrize("usual", [0.5, 0.9])
def test_reward_collapse(usual: float) -> None:
    """Told from its sixth step on, also when the loss is older than what was learned took; a policy
    that had not learned yet has lost nothing."""
    made, told = Made(), None
    for number in range(60):
        level = 0.02 if number < 10 else usual if number < 30 else usual / 4
        noise = float(made.rng.uniform(0, 0.1))
        made.step().metrics["rollout/reward_mean"] = level + noise * (number >= 10)
        told = made.found().get(Sign.reward_collapse)
        assert (told is not None) == (number >= 35), number
    assert told is not None and "lost since step 31" in told


def test_reward_that_swings_is_not_lost() -> None:
    """One task a step: solved ones and others take turns."""
    made = Made()
    for number in range(40):
        made.step().metrics["rollout/reward_mean"] = float(number % 8 < 2)
        assert Sign.reward_collapse not in made.found()


def test_zero_signal(made: Made) -> None:
    for _ in range(3):
        facts = made.step()
        facts.metrics["rollout/zero_signal_share"] = 1.0
    assert set(made.found()) == {Sign.zero_signal}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("update_norm", 0.0),
        ("grad_norm", 0.0),
        ("weight_zero_share", 1.0),
        ("mismatch__zero_share", 1.0),
    ],
)
def test_silent(made: Made, name: str, value: float) -> None:
    for number in range(3):
        made.step(**{name: value})
        assert (set(made.found()) == {Sign.silent}) == (number == 2)


def test_no_gradient_where_all_groups_agree_is_told_once(made: Made) -> None:
    for number in range(4):
        made.step(grad_norm=0.0).metrics["rollout/zero_signal_share"] = 1.0
        found = made.found()
        assert set(found) == ({Sign.zero_signal} if number > 1 else set())
    assert "last 4 steps all groups carry no signal" in found[Sign.zero_signal]
    made.step(grad_norm=0.0)
    assert "gradient has been exactly 0 for 5 steps" in made.found()[Sign.silent]


def test_a_mismatch_of_exactly_0_and_an_unreadable_evaluation_are_no_error(made: Made) -> None:
    split = "mismatch__advantage_negative_truncated__"
    for _ in range(5):
        made.step(
            **{f"{split}abs_mean": 0.0, f"{split}token_share": 0.2},
            mismatch__abs_mean=0.0,
            mismatch__zero_share=1.0,
        )
    made.history.evals = {0: {"held-1": [1.0]}, 10: {}}
    assert set(made.found()) == {Sign.silent}


def test_held_out_churn_is_told_while_the_mismatch_is_calm(made: Made) -> None:
    tasks = [f"held-{number}" for number in range(20)]
    before = {task: [1.0, 1.0] for task in tasks[:12]} | {task: [0.0, 0.0] for task in tasks[12:]}
    made.history.evals = {0: before, 10: before}
    assert made.found() == {}
    made.history.evals[20] = before | {task: [0.0, 1.0] for task in tasks[:9]}
    assert "9 tasks down, 0 up" in made.found()[Sign.held_out_churn]


def test_every_sign_but_that_of_waiting_has_a_detector() -> None:
    assert set(Sign) - set(DETECTORS) == {Sign.stalled}
