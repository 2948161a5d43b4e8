"""A study's page from run folders with planted effects, and its plan."""

import json
import math
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from glm52_tbench2 import cli
from glm52_tbench2.analysis.run_files import RunFiles
from glm52_tbench2.analysis.stats import Interval
from glm52_tbench2.analysis.study.compare import (
    OUTCOMES,
    PRIMARY,
    SENSITIVITY,
    Effect,
    effects,
    horizon,
    judge,
    losses,
    matters_most,
    notes,
    onsets,
)
from glm52_tbench2.analysis.study.measures import Measures, kept, measure, measured
from glm52_tbench2.analysis.study.page import render, write_page
from glm52_tbench2.analysis.study.plan import (
    PLAN_FILE,
    SET_SIZE,
    Arm,
    Claim,
    Plan,
    load_plan,
    point_name,
    save_plan,
)
from glm52_tbench2.analysis.study.recorded import RECORDED, facts, take
from glm52_tbench2.config.checks import problems
from glm52_tbench2.config.compose import compose, compose_unchecked, leaves
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.launch.run_folder import identity_now
from glm52_tbench2.rollout.batch import batch_path, read_batch

from .fake_run import FakeRun, byte_tokenizer

SEEDS = [1, 2, 3, 4, 5]


def made(drift: float, seed: int, steps: int = 12, tasks: int = 8) -> Measures:
    """A run whose capped turns drift by about `drift`."""
    noise = float(np.random.default_rng([seed, int(drift * 1e4)]).normal(0, 0.05))
    return Measures(
        visits=[step * 8 / tasks for step in range(1, steps + 1)],
        drift_sum=[100 * drift * np.exp(noise)] * steps,
        drift_tokens=[100] * steps,
        kl=[0.01 * np.exp(noise)] * steps,
        reward=[0.5 + noise] * steps,
        truncated=[0.1 + noise / 9] * steps,
        held_out={step: {"a": 0.5 + noise} for step in (0, steps)},
    )


def plan(**arms: list[str]) -> Plan:
    each = {name: Arm(name, "All", "one knob", overrides) for name, overrides in arms.items()}
    base = Arm("the base arm", "base", "nothing")
    return Plan(["experiment=set_size"], SEEDS, 12, ["x"], [], [], {"base": base, **each})


def runs(**drifts: float) -> dict[str, dict[int, Measures]]:
    return {arm: {seed: made(drift, seed) for seed in SEEDS} for arm, drift in drifts.items()}


def test_the_arm_with_the_planted_effect_is_named() -> None:
    study = plan(lag0=["rollout.lag=0"], dppo=["clip=dppo"], icepop=["clip=icepop"])
    found = effects(study, runs(base=0.2, lag0=0.02, dppo=0.1, icepop=0.201), "steps", PRIMARY)
    assert matters_most(study, found).startswith("The single change that matters most is lag0 (")
    assert {arm: e.verdict for arm, e in found.items()} == {
        "lag0": "lower",
        "dppo": "lower",
        "icepop": "same",
    }
    assert np.exp(found["lag0"].interval.mean) == pytest.approx(0.1, rel=0.1)
    expected = Claim("It drives it.", "lag0", "steps", "lower")
    assert judge(expected, found["lag0"]) == "reproduced"
    assert judge(expected, found["icepop"]) == "contradicted: same"
    assert judge(expected, None) == "can't be told"


def test_without_any_effect_nothing_is_named() -> None:
    study = plan(lag0=["rollout.lag=0"], dppo=["clip=dppo"])
    noisy = runs(base=0.2, lag0=0.2, dppo=0.2)
    for seed, factor in zip(SEEDS, (3.0, 0.4, 1.5, 0.5, 1.2), strict=True):
        noisy["lag0"][seed] = made(0.2 * factor, seed)
    found = effects(study, noisy, "steps", PRIMARY)
    assert matters_most(study, found).startswith("Can't be told")
    assert found["lag0"].verdict == "can't be told"


def test_a_verdict_does_not_hang_on_how_much_has_run() -> None:
    """What is told of an arm is told alike when the others have run."""
    others = {f"arm{number}": [f"optim.lr={number}e-4"] for number in range(1, 9)}
    study = plan(lag0=["rollout.lag=0"], **others)
    some = runs(base=0.2, lag0=0.18)
    whole = some | {arm: runs(arm=0.2 + int(arm[3:]) / 100)["arm"] for arm in others}
    alone, late = (effects(study, each, "steps", PRIMARY)["lag0"] for each in (some, whole))
    assert alone.adjusted == late.adjusted and alone.verdict == late.verdict


def test_two_changes_as_large_as_each_other_are_not_told_apart() -> None:
    study = plan(lag0=["rollout.lag=0"], dppo=["clip=dppo"])
    found = effects(study, runs(base=0.2, lag0=0.05, dppo=0.0501), "steps", PRIMARY)
    assert "can't be told" in matters_most(study, found)


def test_two_knobs_at_once_are_no_single_change() -> None:
    study = plan(both=["rollout.lag=0", "engine.dtype=float32"], dppo=["clip=dppo"])
    found = effects(study, runs(base=0.2, both=0.01, dppo=0.1), "steps", PRIMARY)
    assert "matters most is dppo" in matters_most(study, found)


def test_a_tiny_factor_keeps_a_digit() -> None:
    ends = (math.log(value) for value in (9.3e-5, 6.1e-5, 0.95))
    assert OUTCOMES[0].shown(Interval(*ends, 5)) == "× 9e-05 [6e-05, 0.95]"


def test_what_is_good_depends_on_the_outcome() -> None:
    low, high = (Interval(v, v - 0.1, v + 0.1, 4) for v in (-1.0, 1.0))
    tones = {
        one.key: [Effect("other", one, {}, found, found).tone for found in (low, high)]
        for one in OUTCOMES
    }
    assert tones == {
        "drift": ["good", "bad"],
        "held_out": ["bad", "good"],
        "reward": ["bad", "good"],
        "truncated": ["good", "bad"],
        "kl": ["good", "bad"],
    }
    assert Effect("other", OUTCOMES[0], {}, None, None).tone == ""


def test_one_seed_says_nothing() -> None:
    study, few = plan(lag0=["rollout.lag=0"]), runs(base=0.2, lag0=0.02)
    few["lag0"] = {1: few["lag0"][1]}
    found = effects(study, few, "steps", PRIMARY)
    assert matters_most(study, found).startswith("Can't be told")
    assert "no interval" in found["lag0"].shown


def test_the_two_clocks_compare_other_steps_of_one_run() -> None:
    """16 tasks: as many visits as the base's only after twice the steps, where its drift is."""
    study, found = plan(tasks16=["data=mini16"]), runs(base=0.2)
    late = {seed: made(0.201, seed, steps=24, tasks=16) for seed in SEEDS}
    for run in late.values():
        run.drift_sum[:12] = [1.0] * 12
    found["tasks16"] = late
    steps = effects(study, found, "steps", PRIMARY)["tasks16"]
    visits = effects(study, found, "visits", PRIMARY)["tasks16"]
    assert steps.verdict == "lower" and visits.verdict == "same"
    assert effects(study, found, "visits", OUTCOMES[1])["tasks16"].by_seed.keys() == set(SEEDS)
    short = {seed: made(0.2, seed, steps=12, tasks=16) for seed in SEEDS}
    assert not effects(study, found | {"tasks16": short}, "visits", PRIMARY)


def test_a_run_whose_tasks_came_twice_in_a_step_ends_at_equal_visits_all_the_same() -> None:
    study, found = plan(tasks16=["data=mini16"]), runs(base=0.2)
    found["tasks16"] = {seed: made(0.2, seed, steps=24, tasks=16) for seed in SEEDS}
    for lost, compared in ((0.0, 24), (0.2, 24), (0.6, None)):
        for run in found["tasks16"].values():
            run.visits[-4:] = [visits - lost for visits in (10.5, 11, 11.5, 12)]
            assert horizon(study, run, "visits") == compared
        assert bool(effects(study, found, "visits", PRIMARY)) == (compared is not None)


def test_a_drift_is_over_tokens_of_six_steps_and_an_onset_in_visits() -> None:
    run = made(0.1, 1, steps=12, tasks=16)
    run.drift_tokens[:6], run.drift_sum[:6] = [0] * 6, [0.0] * 6
    run.drift_sum[9:], run.drift_tokens[9:] = [300.0] * 3, [300] * 3
    drift = run.drift()
    assert 6 not in drift, "no capped turn in the first six steps"
    assert drift[12] == pytest.approx((3 * 100 * 0.1 + 900) / 1200, rel=0.05)
    assert run.onset(0.3, 12) == 5.0, "step 10, 16 tasks of which 8 are trained a step"
    assert run.onset(0.3, 9) is None and Measures().peak(9) is None


def test_a_run_that_lost_its_reward_is_told_with_the_visits_it_came_after() -> None:
    study, run = plan(), made(0.1, 1, steps=40, tasks=16)
    study.steps = 20
    assert run.lost_at(10, 40) is None and losses(study, [run], "visits") == "none of 1"
    run.reward[30:] = [0.01] * 10
    assert run.lost_at(10, 40) == 15.5
    assert losses(study, [run, made(0.1, 2, steps=40)], "visits") == "1 of 2, at 16 visits"


def test_bursts_and_losses_are_of_what_is_compared() -> None:
    """Of a run that goes on, the steps that the base has; a run that ended before says nothing."""
    study = plan()
    study.steps = 20
    late, short = made(0.1, 1, steps=40, tasks=16), made(0.1, 2, steps=12, tasks=16)
    late.reward[30:] = [0.01] * 10
    late.drift_sum[30:] = [900.0] * 10
    runs = [late, short]
    assert onsets(study, runs, "steps") == losses(study, runs, "steps") == "none of 1"
    assert onsets(study, runs, "visits") == "1 of 1, at 16 visits"
    assert losses(study, runs, "visits") == "1 of 1, at 16 visits"
    assert onsets(study, [short], "steps") == ""


def test_a_peak_tells_how_many_turns_it_rests_on() -> None:
    """One turn that drifts makes a peak; windows of five or more are the sensitivity."""
    study, found = plan(tasks16=["data=mini16"]), runs(base=0.1, tasks16=0.1)
    for run in (run for of in found.values() for run in of.values()):
        run.identity = {"config": {"rollout.max_turn_tokens": 100}}
        run.drift_tokens = [95] * 11 + [0]
    for run in found["tasks16"].values():
        run.drift_tokens[:] = [0] * 5 + [97] + [0] * 5 + [96 * 5]
        run.drift_sum[:] = [0.0] * 5 + [97 * 0.4] + [0.0] * 5 + [96 * 5 * 0.05]
        assert (run.peak_turns(12), run.peak_turns(5)) == (1, 0)
        assert run.turns(12) == 5 and run.peak(12, 5) == pytest.approx(0.05)
        assert run.peak(12, 6) is None
    first, many = (effects(study, found, "steps", one)["tasks16"] for one in (PRIMARY, SENSITIVITY))
    assert first.verdict == "higher" and many.verdict == "lower"


def test_pairs_of_other_code_and_those_that_nothing_tells_apart_are_counted() -> None:
    study, found = plan(lag0=["rollout.lag=0"]), runs(base=0.2, lag0=0.1)
    for seed in SEEDS:
        found["lag0"][seed].reward[3] += 0.1
    assert notes(study, found, "steps") == {}
    found["lag0"][2].identity = {"code": "other"}
    found["lag0"][4].identity = {"packages": {"torch": "0.1"}}
    del found["lag0"][5]
    assert notes(study, found, "steps") == {"lag0": ["2 of 4 pairs of other code"]}
    found["lag0"][2] = replace(found["base"][2], identity=found["lag0"][2].identity)
    alike = "in 1 of 4 pairs the base's run, step for step"
    assert notes(study, found, "steps")["lag0"][1:] == [alike]


# --- from files ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def study_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two arms, two seeds; one run has not begun, and one was stopped at its third step."""
    folder = tmp_path_factory.mktemp("studies") / "study"
    study = plan(lag0=["rollout.lag=0"])
    study.seeds, study.steps = [1, 2], 6
    study.claims = [Claim("It drives it.", "lag0", "steps", "lower")]
    study.fixed = ["Seeds are <fixed>."]
    points = []
    for name, _, overrides in study.points():
        points.append({"folder": name, "overrides": overrides})
        if name == "lag0-seed2":
            continue
        fake = FakeRun(folder / name, byte_tokenizer(), steps=6, num_tasks=8, num_eval=4, samples=2)
        fake.write(upto=3 if name == "base-seed2" else 6, finished=name != "base-seed2")
        score(folder / name, shift=0.01 if name.startswith("lag0") else 0.04)
    (folder / "sweep.json").write_text(json.dumps({"base": study.base, "points": points}))
    save_plan(study, folder / PLAN_FILE)
    return folder


def score(run_dir: Path, shift: float) -> None:
    """The trainer's files: every log-prob `shift` above the engine's."""
    for step in RunFiles.open(run_dir).steps("rollouts"):
        samples = read_batch(batch_path(run_dir, "rollouts", step))
        logps = [np.where(s.loss_mask, s.rollout_logprobs + shift, 0.0) for s in samples]
        about = pq.read_schema(batch_path(run_dir, "rollouts", step)).metadata
        table = pa.table(
            {"sample_id": [s.sample_id for s in samples], "trainer_logprobs": logps}, metadata=about
        )
        (run_dir / "train").mkdir(exist_ok=True)
        pq.write_table(table, batch_path(run_dir, "train", step))


def test_measures_are_those_of_the_tokens(study_dir: Path) -> None:
    found = measure(RunFiles.open(study_dir / "base-seed1"))
    assert found.visits == [1, 2, 3, 4, 5, 6], "8 groups a step over 8 tasks"
    total, count = (sum(cell[i] for cell in found.cells.values()) for i in (0, 1))
    samples = [
        sample
        for step in range(1, 7)
        for sample in read_batch(batch_path(study_dir / "base-seed1", "rollouts", step))
    ]
    assert count == sum(s.num_generated for s in samples)
    assert total / count == pytest.approx(0.04, rel=1e-3)
    least = 0.9 * RunFiles.open(study_dir / "base-seed1").config.rollout.max_turn_tokens
    long = [t.end - t.start for s in samples for t in s.turns if t.end - t.start >= least]
    assert sum(found.drift_tokens) == sum(long)
    assert found.held_out.keys() == {0, 6} and len(found.held_out[6]) == 4
    assert found.steps == 6


def test_a_finished_run_is_read_once(study_dir: Path, tmp_path: Path) -> None:
    keep = tmp_path / "kept.json"
    first = measured(study_dir / "base-seed1", keep)
    assert measured(study_dir / "base-seed1", keep) == first
    keep.write_text(keep.read_text().replace('"reward": [', '"reward": [9, '))
    assert measured(study_dir / "base-seed1", keep).reward[0] == 9
    keep.write_text("half-wr")
    assert measured(study_dir / "base-seed1", keep) == first
    change(keep, "identity", "code", value="of another run")
    assert measured(study_dir / "base-seed1", keep) == first == kept(keep)
    unfinished = tmp_path / "unfinished.json"
    assert measured(study_dir / "base-seed2", unfinished).steps == 3
    assert not unfinished.exists()


def test_the_page_of_a_part_says_what_is_missing(study_dir: Path) -> None:
    page = write_page(study_dir).read_text()
    assert "2 of 4 runs finished" in page and "2 of 4 runs are not finished" in page
    assert "Can&#39;t be told" in page
    assert "Seeds are &lt;fixed&gt;." in page and "<fixed>" not in page
    assert "within half a visit" in page and "not by the outcomes" in page
    for words in ("data.train", "rollout.max_turn_tokens", "clip.correction_low"):
        assert words in page, "what the published pair differs in"
    assert " src=" not in page and "<link" not in page, "one file, no network"
    assert render(study_dir).count("<details") == 2, "an arm each"


def test_a_row_tells_the_pairs_of_the_primary_outcome_and_what_they_rest_on(
    study_dir: Path, tmp_path: Path
) -> None:
    """Also of a pair without an evaluation to compare, and of two versions of the code."""
    study = tmp_path / "study"
    shutil.copytree(study_dir, study)
    change(study / "lag0-seed1" / "identity.json", "code", value="other")
    for path in (study / "lag0-seed1" / "eval").iterdir():
        path.unlink()
    for name in ("base-seed1", "lag0-seed1"):  # no turn of these runs is capped
        measures = study / "measures" / f"{name}.json"
        cap = ("config", "rollout.max_turn_tokens")
        change(study / name / "identity.json", *cap, value=100)
        write_page(study)
        change(measures, "drift_tokens", value=[90] * 6)
        change(measures, "drift_sum", value=[0.9] * 6)
    row = render(study).split("<small>rollout.lag=0</small>")[1].split("</tr>")[0]
    assert row.startswith('<small class="note">1 of 1 pairs of other code</small>')
    assert '<td class="n">1</td>' in row and row.count("no pair of runs yet") == 1
    assert "peaks on 6 turns" in row and "≥ 5 turns: × 1.00" in row


def test_the_page_comes_from_the_command_line(study_dir: Path, tmp_path: Path, capsys) -> None:
    assert cli.main(["study", str(study_dir), "--page"]) == 0
    assert capsys.readouterr().out.strip().endswith("study.html")
    assert cli.main(["study", str(tmp_path), "--page"]) == 2
    assert "is not a study's folder: it has no study.yaml" in capsys.readouterr().err


# --- made elsewhere ------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(study_dir: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A study of which no run has begun, and a folder with what base-seed1 measured elsewhere."""
    write_page(study_dir)
    (tmp_path / "recorded").mkdir()
    shutil.copy(study_dir / "measures" / "base-seed1.json", tmp_path / "recorded")
    for name in (PLAN_FILE, "sweep.json"):
        (tmp_path / "study").mkdir(exist_ok=True)
        shutil.copy(study_dir / name, tmp_path / "study")
    for run_dir in study_dir.glob("*-seed*"):
        (tmp_path / "study" / run_dir.name).mkdir()
        for name in ("config.yaml", "identity.json"):
            shutil.copy(run_dir / name, tmp_path / "study" / run_dir.name)
    return tmp_path / "study", tmp_path / "recorded"


def change(path: Path, *keys: str, value: object) -> None:
    """Writes a value into a file of JSON."""
    content = inner = json.loads(path.read_text())
    for key in keys[:-1]:
        inner = inner.setdefault(key, {})
    inner[keys[-1]] = value
    path.write_text(json.dumps(content))


def test_a_run_made_elsewhere_counts_and_is_told(elsewhere: tuple[Path, Path]) -> None:
    study, recorded = elsewhere
    change(recorded / "base-seed1.json", "identity", "code", value="0123456789abcdef")
    change(recorded / "base-seed1.json", "identity", "config", "a.knob.of.later", value=1)
    assert "0 of 4 runs finished" in render(study)
    assert take(study, recorded) == (["base-seed1"], {})
    page = render(study)
    assert "1 of 4 runs finished, 1 of them recorded" in page
    assert "3 of 4 runs are not finished" in page and "0123456789ab<" in page
    assert take(study, recorded) == (["base-seed1"], {}), "again, it is the same"


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (("config", "seed"), "knob seed"),
        (("tasks", "mini/mini8"), "tasks mini/mini8"),
        (("model",), "starting weights"),
    ],
)
def test_what_another_run_measured_is_not_taken(
    elsewhere: tuple[Path, Path], keys: tuple[str, ...], told: str
) -> None:
    study, recorded = elsewhere
    change(study / "base-seed1" / "identity.json", *keys, value="mine")
    change(recorded / "base-seed1.json", "identity", *keys, value="theirs")
    assert take(study, recorded) == ([], {"base-seed1": told})
    assert "0 of 4 runs finished" in render(study)


def test_a_run_made_here_goes_before_one_made_elsewhere(
    study_dir: Path, elsewhere: tuple[Path, Path]
) -> None:
    assert take(study_dir, elsewhere[1]) == ([], {})
    (elsewhere[1] / "base-seed1.json").write_text("half-wr")
    assert take(*elsewhere) == ([], {}), "and what cannot be read is not taken"


def test_every_recorded_run_is_of_the_plan() -> None:
    """Those of the project: each can be read, and would be taken by a study that begins today."""
    study, known = load_plan(SET_SIZE), set()
    for arm in study.arms:
        paths = {seed: RECORDED / f"{point_name(arm, seed)}.json" for seed in study.seeds}
        if not any(path.exists() for path in paths.values()):
            continue
        config = compose([*study.base, *study.arms[arm].overrides])
        asked = facts(asdict(identity_now(config)))
        for seed, path in paths.items():
            if path.exists():
                known.add(path)
                measures = kept(path)
                assert measures is not None and measures.steps == study.steps_of(arm), path
                made = facts(measures.identity)
                asked |= {"knob seed": seed, "knob steps": study.steps_of(arm)}
                shared = asked.keys() & made.keys()
                assert {name: asked[name] for name in shared} == {n: made[n] for n in shared}
                assert shared >= {"knob seed", "knob steps", "starting weights"}
    assert known == set(RECORDED.iterdir())


# --- the plan ------------------------------------------------------------------------------------


def test_every_arm_is_a_run_that_can_start_and_changes_what_it_says() -> None:
    study = load_plan(SET_SIZE)
    base = leaves(compose(study.base))
    for arm in study.arms.values():
        config = compose([*study.base, *arm.overrides])
        assert not problems(config)
        changed = [knob for knob, value in leaves(config).items() if value != base[knob]]
        assert bool(changed) == bool(arm.overrides), arm.title
        assert config.optim.lr == 3e-4, "fixed in advance"
    assert len(study.seeds) >= 5 and {c.arm for c in study.claims} <= study.arms.keys()


def test_all_arms_come_at_one_seed_before_the_next(tmp_path: Path) -> None:
    study = load_plan(SET_SIZE)
    points = study.points()
    first = points[: len(study.arms)]
    assert {arm for _, arm, _ in first} == study.arms.keys()
    assert all("seed=1" in overrides for _, _, overrides in first)
    assert points[0][0] == point_name("base", 1)
    quick = study.shortened()
    assert quick.steps < study.steps and len(quick.points()) <= 8
    save_plan(study, tmp_path / PLAN_FILE)
    assert load_plan(tmp_path / PLAN_FILE) == study


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("arms: {}", "has no arm `base`"),
        ("steps: many", "is not a study's plan"),
        ("seed: [1]", "is not a study's plan"),
        ("claims: [{claim: x, arm: nobody, clock: steps, expect: same}]", "claims on nobody"),
    ],
)
def test_a_plan_that_is_none_is_told(tmp_path: Path, change: str, told: str) -> None:
    path, key = tmp_path / "plan.yaml", change.split(":")[0]
    kept = {"base": "[]", "seeds": "[1]", "steps": 4, "fixed": "[]", "tried": "[]", "claims": "[]"}
    kept["arms"] = "{base: {title: b, family: f, change: none}}"
    lines = [f"{k}: {v}" for k, v in kept.items() if k != key]
    path.write_text("\n".join([*lines, change]))
    with pytest.raises(UserError, match=told):
        load_plan(path)


def test_the_causal_arms_mirror_each_other() -> None:
    one, other = (
        leaves(compose_unchecked(["experiment=set_size", f"clip=capped_{sign}"]))
        for sign in ("negative", "positive")
    )
    assert [knob for knob in one if one[knob] != other[knob]] == ["clip.capped"]
