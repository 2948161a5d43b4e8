"""The sentinel over a run's files: the same alarms live, after a resume, and afterwards."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from glm52_tbench2.analysis.run_files import RunFiles
from glm52_tbench2.analysis.sentinel.detectors import DETECTORS
from glm52_tbench2.analysis.sentinel.facts import StepFacts, path
from glm52_tbench2.analysis.sentinel.files import ALARMS_FILE, Alarm, alarms, facts_at
from glm52_tbench2.analysis.sentinel.watch import QUIET, Judge, Sentinel, judge
from glm52_tbench2.config.compose import compose, save_run_config
from glm52_tbench2.config.files import SCHEMA_VERSION
from glm52_tbench2.config.schema import RunConfig, SentinelAction, Sign
from glm52_tbench2.rollout.batch import Sample, batch_path, write_batch

from ...rollout.make import make_sample

CAP, STEPS = 200, 8
LOOP = np.tile(np.arange(5, 25, dtype=np.int32), CAP // 20)


def config(**sentinel: object) -> RunConfig:
    run = compose(["experiment=smoke", f"rollout.max_turn_tokens={CAP}", f"steps={STEPS}"])
    return replace(run, sentinel=replace(run.sentinel, **sentinel))


def sample(step: int, group: int, said: np.ndarray, advantage: float) -> Sample:
    made = make_sample(
        group,
        step=step,
        turns=1,
        turn_tokens=len(said),
        version=step - 1,
        reward=float(advantage > 0),
        end_reason="length" if len(said) == CAP else "task_complete",
    )
    made.tokens[made.loss_mask] = said
    made.advantage = advantage
    return made


def batch(step: int) -> list[Sample]:
    """Task 0 loops to the cap and fails, task 1 says something new, task 2 loops and succeeds."""
    rng = np.random.default_rng(step)
    return [
        sample(step, 0, LOOP, -1.0),
        sample(step, 1, rng.integers(0, 900, 50).astype(np.int32), 1.0),
        sample(step, 2, LOOP + 100, 1.0),
    ]


def scores(step: int) -> list[np.ndarray]:
    return [s.rollout_logprobs + np.float32(0.05 * step) for s in batch(step)]


def metrics(step: int) -> dict[str, float]:
    return {"trainer/train_rollout_kl": 0.03, "trainer/entropy": 0.5, "trainer/grad_norm": 0.3}


def watched(folder: Path, run: RunConfig, restarts: tuple[int, ...] = ()) -> list[Alarm]:
    """Trains STEPS steps under a sentinel that is started anew after the steps `restarts`."""
    save_run_config(run, folder)
    sentinel = Sentinel(folder, run, 0)
    for step in range(1, STEPS + 1):
        write_batch(batch_path(folder, "rollouts", step), batch(step), "id", step)
        sentinel.observe(step, batch(step), scores(step), metrics(step))
        table = pa.table({
            "sample_id": [s.sample_id for s in batch(step)], "trainer_logprobs": scores(step),
        })  # fmt: skip
        file = batch_path(folder, "train", step)
        file.parent.mkdir(exist_ok=True)
        about = {"schema_version": SCHEMA_VERSION, "identity": "id", "step": str(step)}
        pq.write_table(table.replace_schema_metadata(about), file)
        if step in restarts:
            sentinel = Sentinel(folder, run, step)
    return alarms(folder)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watched")
    watched(folder, config())
    return folder


def test_alarms_are_written_once_with_what_they_did(run_dir: Path) -> None:
    found = alarms(run_dir)
    assert [(one.step, one.sign, one.action) for one in found] == [
        (3, "repetition", "note"),
        (5, "sign_persistent", "note"),
    ]
    assert all(one.tasks == ["task-0"] and "task-0" in one.sentence for one in found)


def test_a_resumed_run_raises_the_alarms_of_the_uninterrupted_one(run_dir, tmp_path) -> None:
    assert watched(tmp_path, config(), (2, 3, 6)) == alarms(run_dir)


def test_a_step_that_is_trained_again_is_told_once(tmp_path) -> None:
    once = watched(tmp_path, config())
    sentinel = Sentinel(tmp_path, config(), 2)
    for step in range(3, STEPS + 1):
        sentinel.observe(step, batch(step), scores(step), metrics(step))
    assert alarms(tmp_path) == once


def test_the_files_alone_tell_the_same(run_dir, tmp_path) -> None:
    """Facts that were not kept, or are damaged, are made of the step files."""
    watched(tmp_path, config())
    live, _ = judge(RunFiles.open(tmp_path))
    for step in range(1, STEPS + 1):
        if step % 2:
            path(tmp_path, step).unlink()
        else:
            path(tmp_path, step).write_text('{"step": 2, "metr')
    afterwards, _ = judge(RunFiles.open(tmp_path))
    assert [(a.step, a.sign, a.sentence) for a in afterwards] == [
        (a.step, a.sign, a.sentence) for a in live
    ]
    assert [a.step for a in live] == [3, 5]


def test_facts_of_a_damaged_or_missing_step_are_none(tmp_path) -> None:
    watched(tmp_path, config())
    run = RunFiles.open(tmp_path)
    for step in (1, 2, 3):
        path(tmp_path, step).unlink()
    batch_path(tmp_path, "rollouts", 1).write_bytes(b"PAR1")
    batch_path(tmp_path, "train", 2).unlink()
    assert [facts_at(run, step) is None for step in (1, 2, 3, 99)] == [True, True, False, True]


def test_a_line_cut_by_a_kill_is_passed_over(tmp_path) -> None:
    found = watched(tmp_path, config())
    with (tmp_path / ALARMS_FILE).open("a") as file:
        file.write('{"step": 9, "sig')
    assert alarms(tmp_path) == found


@pytest.mark.parametrize(
    "wrong", [{"step": "a"}, {"step": 1e999}, {"sentence": 5}, {"tasks": None}, {"evidence": []}]
)
def test_an_alarm_of_another_type_is_left_out_and_told(tmp_path, wrong) -> None:
    good = {"step": 9, "sign": "entropy", "action": "note", "sentence": "It rises."}
    lines = [json.dumps(one) for one in (good | wrong, good)]
    (tmp_path / ALARMS_FILE).write_text("\n".join(lines))
    told: list[str] = []
    assert alarms(tmp_path, told.append) == [Alarm(**good)]
    assert told == ["alarms.jsonl: 1 of 2 lines are no records; left out"]


def test_an_alarm_closes_after_quiet_steps_and_can_open_again() -> None:
    found = Judge(config())
    silent = {"trainer/grad_norm": 0.0}

    def steps(number: int, of: dict[str, float]) -> int:
        start = len(found.history.steps)
        facts = (StepFacts(step, of, {}) for step in range(start + 1, start + 1 + number))
        return sum(len(found.add(one)) for one in facts)

    assert steps(5, silent) == 1
    assert found.open == [Sign.silent]
    assert steps(QUIET - 1, {"trainer/grad_norm": 0.3}) == 0
    assert found.open == [Sign.silent]
    assert steps(1, {"trainer/grad_norm": 0.3}) == 0
    assert found.open == []
    assert steps(3, silent) == 1


@pytest.mark.parametrize("action", ["checkpoint", "mask", "pause", "stop"])
def test_a_run_that_has_solved_its_tasks_is_left_alone(action: str) -> None:
    found = Judge(compose(["experiment=smoke", f"sentinel={action}"]))
    solved = {"rollout/zero_signal_share": 1.0, "trainer/grad_norm": 0.0}
    opened = [alarm for step in range(1, 9) for alarm in found.add(StepFacts(step, solved, {}))]
    assert [(alarm.sign, alarm.action) for alarm in opened] == [("zero_signal", "note")]
    assert found.action(Sign.mismatch_growth) is SentinelAction[action]


def test_what_is_ignored_is_not_found(tmp_path) -> None:
    assert watched(tmp_path / "all", config(action=SentinelAction.ignore)) == []
    kept = watched(tmp_path / "one", config(actions={"repetition": "ignore"}))
    assert [one.sign for one in kept] == ["sign_persistent"]


def test_masked_are_repeated_giant_turns_that_are_pushed_down_while_the_alarm_is_open(
    tmp_path,
) -> None:
    run = config(action=SentinelAction.mask)
    sentinel = Sentinel(tmp_path, run, 0)
    for step in range(1, 4):
        assert sentinel.masked(batch(step)) == []
        sentinel.observe(step, batch(step), scores(step), metrics(step))
    assert sentinel.masked(batch(4)) == [0]
    new = sample(4, 3, np.arange(CAP, dtype=np.int32), -1.0)
    assert sentinel.masked([new, *batch(4)]) == [1]
    assert Sentinel(tmp_path, run, 3).masked(batch(4)) == [0]


def test_metrics_tell_of_each_task(tmp_path) -> None:
    sentinel = Sentinel(tmp_path, config(), 0)
    for step in range(1, 4):
        _, told = sentinel.observe(step, batch(step), scores(step), metrics(step))
    task = {name.rpartition("/")[2]: v for name, v in told.items() if "/task-0/" in name}
    assert task == pytest.approx({
        "reward_mean": 0, "reward_std": 0, "visits": 3, "pull": -1, "pull_streak": -3,
        "mismatch_abs_mean": 0.15, "truncated": 1, "giant_turns": 1,
    }, abs=1e-6)  # fmt: skip
    assert told["sentinel/alarm/repetition"] == 1


def test_a_wait_in_which_no_episode_ends_is_told_once_a_step(tmp_path, monkeypatch) -> None:
    run, clock = config(), [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    sentinel = Sentinel(tmp_path, run, 0)
    most = 2 * (run.rollout.episode_timeout_s + run.sandbox.start_timeout_s)

    def wait(step: int, seconds: float, ended: int) -> Alarm | None:
        told = {"phase": "generate", "step": step, "samples_done": ended, "time": clock[0]}
        (tmp_path / "progress.json").write_text(json.dumps(told))
        clock[0] += seconds
        return sentinel.waiting(step, clock[0])

    assert wait(4, 10, ended=1) is None
    assert wait(4, most - 1, ended=2) is None
    assert wait(4, most - 1, ended=2) is None
    alarm = wait(4, 2, ended=2)
    assert alarm is not None and "has got a verdict" in alarm.sentence
    assert "after step 4" in alarm.sentence
    assert wait(4, 2, ended=2) is None
    assert wait(5, most + 1, ended=0) is None  # it has just said something new
    assert wait(5, most + 1, ended=0) is not None


def test_a_sign_that_cannot_be_judged_costs_no_other(monkeypatch) -> None:
    def fails(history: object, config: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(DETECTORS, Sign.mismatch_growth, fails)
    found = Judge(config())
    steps = [StepFacts(step, {"trainer/grad_norm": 0.0}, {}) for step in (1, 2, 3)]
    assert [alarm.sign for one in steps for alarm in found.add(one)] == ["silent"]
