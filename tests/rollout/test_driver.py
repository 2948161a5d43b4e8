"""The driver's loop against a scripted trainer, engines and sandboxes."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glm52_tbench2.config import metrics_log
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.schema import (
    Overlong,
    RunConfig,
    SandboxConfig,
)  # fmt: skip
from glm52_tbench2.rollout import endpoints as endpoints_module
from glm52_tbench2.rollout import player as player_module
from glm52_tbench2.rollout.batch import Sample, batch_path, read_info
from glm52_tbench2.rollout.driver import Driver
from glm52_tbench2.rollout.outcome import EndReason
from glm52_tbench2.rollout.player import MAX_ATTEMPTS, RolloutError

from .fakes import (
    EngineError,
    SandboxError,
    ScriptedEngine,
    Slow,
    bash,
)  # fmt: skip
from .job import DicedEngine, ScriptedJob, batch, drive, make_config


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    real = asyncio.sleep
    monkeypatch.setattr(player_module.asyncio, "sleep", lambda s: real(min(s, 0.01)))


def told(samples: list[Sample]) -> list[Any]:
    """All that must be equal when a batch is made twice."""
    return [
        (s.sample_id, s.task_id, s.end_reason, s.reward, s.advantage, s.tokens.tolist(),
         s.rollout_logprobs.tolist(), s.weight_versions.tolist())
        for s in samples
    ]  # fmt: skip


def test_a_run_from_its_first_evaluation_to_its_last(tmp_path, chat):
    job, config = ScriptedJob(tmp_path, chat), make_config()
    drive(job, config)
    for step in (1, 2, 3):
        samples = batch(tmp_path, step)
        assert [(s.group, s.index) for s in samples] == [(g, i) for g in range(3) for i in range(4)]
        assert all(set(s.weight_versions[s.loss_mask]) == {step - 1} for s in samples)
        assert all(len({s.task_id for s in samples if s.group == g}) == 1 for g in range(3))
    tasks = [s.task_id for step in (1, 2, 3) for s in batch(tmp_path, step)[::4]]
    assert len(set(tasks[:8])) == 8, "an epoch visits each of the 8 tasks once"
    assert sorted(p.stem for p in (tmp_path / "eval").iterdir()) == [
        "step_000000", "step_000002", "step_000003",
    ]  # fmt: skip
    assert len(batch(tmp_path, 2, "eval")) == 40
    logged = metrics_log.read(tmp_path)
    assert sorted(logged["driver"]) == [1, 2, 3] and sorted(logged["eval"]) == [0, 2, 3]
    assert job.most_open <= 5 and job.open_now == 0
    progress = json.loads((tmp_path / "progress.json").read_text())
    assert (progress["phase"], progress["step"], progress["steps"]) == ("done", 3, 3)


def test_advantages_are_those_of_the_group(tmp_path, chat):
    drive(ScriptedJob(tmp_path, chat), make_config(steps=1))
    samples = batch(tmp_path, 1)
    for group in range(3):
        rewards = np.array([s.reward for s in samples if s.group == group])
        found = [s.advantage for s in samples if s.group == group]
        expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
        assert found == pytest.approx(expected, rel=1e-5)
    assert any(s.advantage for s in samples)


def test_batches_do_not_depend_on_who_finishes_first(tmp_path, chat):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        drive(ScriptedJob(tmp_path / name, chat), make_config(steps=2))
    for kind, step in (("rollouts", 1), ("rollouts", 2), ("eval", 2)):
        a, b = (told(batch(tmp_path / name, step, kind)) for name in ("a", "b"))
        assert a == b
    other = make_config(steps=1)
    other.seed = 2
    (tmp_path / "c").mkdir()
    drive(ScriptedJob(tmp_path / "c", chat), other)
    assert told(batch(tmp_path / "c", 1)) != told(batch(tmp_path / "a", 1))


def test_passing_faults_leave_no_trace_but_their_count(tmp_path, chat):
    """One sandbox in three is lost at its first try: replaced alone, with the same tokens."""
    (tmp_path / "calm").mkdir()
    (tmp_path / "storm").mkdir()
    drive(ScriptedJob(tmp_path / "calm", chat), make_config(steps=1))

    class Storm(ScriptedJob):
        tried: set = set()  # noqa: RUF012

        async def engine(self, number):
            engine = await super().engine(number)

            class Failing(DicedEngine):
                async def generate(self, input_ids, **asked):
                    sample = asked["rid"].rpartition("-")[0].rpartition("-")[0]
                    if hash(sample) % 3 == 0 and sample not in Storm.tried:
                        Storm.tried.add(sample)
                        raise EngineError("lost")
                    return await super().generate(input_ids, **asked)

            return Failing(self.chat, version=engine.version)

    drive(Storm(tmp_path / "storm", chat), make_config(steps=1))
    assert told(batch(tmp_path / "storm", 1)) == told(batch(tmp_path / "calm", 1))
    stats = read_info(batch_path(tmp_path / "storm", "rollouts", 1)).stats
    evaluated = read_info(batch_path(tmp_path / "storm", "eval", 0)).stats
    replaced = stats.get("replaced/engine", 0) + evaluated.get("replaced/engine", 0)
    assert replaced > 0
    logged = metrics_log.read(tmp_path / "storm")["driver"][1]
    assert logged.get("rollout/replaced/engine", 0) == stats.get("replaced/engine", 0)


def first_task(run_dir: Path, chat: Any) -> str:
    """Task of the first group of step 1."""
    (run_dir / "probe").mkdir()
    drive(ScriptedJob(run_dir / "probe", chat), make_config(steps=1))
    return batch(run_dir / "probe", 1)[0].task_id


def test_a_task_whose_sandbox_never_starts_costs_its_group_alone(tmp_path, chat):
    broken = first_task(tmp_path, chat)
    config = make_config(steps=1)
    job = ScriptedJob(
        tmp_path, chat, lose=lambda task, _: SandboxError("no image") if task == broken else None
    )
    drive(job, config)
    samples = batch(tmp_path, 1)
    assert [s.group for s in samples[::4]] == [1, 2, 3]
    assert broken not in {s.task_id for s in samples}
    assert job.opened[broken] == 4 * MAX_ATTEMPTS
    stats = read_info(batch_path(tmp_path, "rollouts", 1)).stats
    assert stats["dropped/check_no_aborted"] == 1
    assert stats["replaced/sandbox"] == 4 * MAX_ATTEMPTS


def test_without_the_filter_a_lost_sample_stops_the_run_in_a_sentence(tmp_path, chat):
    config = make_config(steps=1, filters=[])
    config.eval.every = 0
    job = ScriptedJob(tmp_path, chat, lose=lambda *_: SandboxError("no image"))
    with pytest.raises(RolloutError, match=r"no verdict in 6 attempts: sandbox, no image"):
        drive(job, config)
    assert not (tmp_path / "rollouts").exists()


def test_an_environment_that_is_gone_stops_the_run_in_a_sentence(tmp_path, chat):
    config = make_config(steps=1)
    job = ScriptedJob(tmp_path, chat, lose=lambda *_: SandboxError("no image"))
    with pytest.raises(RolloutError, match="not one sample of evaluation 0 got a verdict"):
        drive(job, config)
    config.eval.every = 0
    with pytest.raises(RolloutError, match=r"after 30 draws .*check_no_aborted dropped"):
        drive(job, config)


def test_groups_without_a_signal_are_replaced_by_further_draws(tmp_path, chat):
    silent = first_task(tmp_path, chat)
    config = make_config(steps=1, filters=["check_reward_nonzero_std"])
    config.eval.every = 0
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        job = ScriptedJob(
            tmp_path / name, chat, reward=lambda task, solved: float(solved and task != silent)
        )
        drive(job, config)
    samples = batch(tmp_path / "a", 1)
    assert silent not in {s.task_id for s in samples}
    assert len(samples) == 12
    rewards = [{s.reward for s in samples if s.group == g} for g in {s.group for s in samples}]
    assert all(len(r) == 2 for r in rewards)
    assert told(samples) == told(batch(tmp_path / "b", 1))
    stats = read_info(batch_path(tmp_path / "a", "rollouts", 1)).stats
    assert stats["dropped/check_reward_nonzero_std"] >= 1 and stats["wasted_tokens"] > 0


def test_an_answer_that_the_wall_clock_cuts_is_wasted(tmp_path, chat):
    config = make_config(steps=1, episode_timeout_s=0.3, max_concurrent_samples=12)
    config.eval.every = 0

    class Endless(ScriptedEngine):
        async def answer(self, reply, room):
            if reply is None:
                await asyncio.Event().wait()
            return await super().answer(reply, room)

    class Slowing(ScriptedJob):
        async def engine(self, number):
            return Endless(self.chat, [bash("ls"), None])

    drive(Slowing(tmp_path, chat), config)
    assert {(s.end_reason, len(s.turns)) for s in batch(tmp_path, 1)} == {("timeout", 1)}
    stats = read_info(batch_path(tmp_path, "rollouts", 1)).stats
    assert stats["wasted/timeout"] == stats["wasted_tokens"] == 12 * 3


def test_a_policy_that_never_solves_does_not_draw_for_ever(tmp_path, chat):
    config = make_config(steps=1, filters=["check_reward_nonzero_std"])
    config.eval.every = 0
    job = ScriptedJob(tmp_path, chat, reward=lambda *_: 0.0)
    with pytest.raises(RolloutError, match=r"kept 0 of 3 groups after 30 draws"):
        drive(job, config)


def test_an_evaluation_counts_what_is_missing(tmp_path, chat):
    config = make_config(steps=1)
    job = ScriptedJob(tmp_path, chat)
    job.lose = lambda task, _: SandboxError("x") if task == job_eval[0] else None
    job_eval = Driver(tmp_path, config, "id", job, chat).eval_tasks
    drive(job, config)
    assert len(batch(tmp_path, 0, "eval")) == 38
    assert metrics_log.read(tmp_path)["eval"][0]["eval/missing"] == 2


def test_the_overlong_penalty_moves_advantages_and_not_the_verdict(tmp_path, chat):
    config = make_config(steps=1)
    config.clip.overlong = Overlong.penalty
    drive(ScriptedJob(tmp_path, chat, reward=lambda *_: 1.0), config)
    samples = batch(tmp_path, 1)
    assert {s.reward for s in samples} == {1.0}
    for sample in samples:
        over = len(sample.tokens) - 100
        assert sample.penalty == pytest.approx(-0.5 * over / 300 if over > 0 else 0)
    assert any(s.advantage > 0 for s in samples)


# Restarts


def kill_after(job: ScriptedJob, config: RunConfig, kind: str, step: int) -> None:
    """Drives until a file appears, then cancels."""

    async def run() -> None:
        driver = Driver(job.run_dir, config, "id", job, job.chat)
        task = asyncio.create_task(driver.run())
        while not batch_path(job.run_dir, kind, step).exists():
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.01)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())


@pytest.mark.parametrize(("kind", "step"), [("eval", 0), ("rollouts", 1), ("eval", 2)])
def test_a_driver_that_is_killed_goes_on_where_files_end(tmp_path, chat, kind, step):
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    drive(ScriptedJob(tmp_path / "whole", chat), make_config())
    kill_after(ScriptedJob(tmp_path / "killed", chat), make_config(), kind, step)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "killed").glob("*/*.parquet")}
    job = ScriptedJob(tmp_path / "killed", chat)
    drive(job, make_config())
    assert all(p.stat().st_mtime_ns == time for p, time in before.items()), "made once"
    for kind, steps in (("rollouts", (1, 2, 3)), ("eval", (0, 2, 3))):
        for step in steps:
            a, b = (told(batch(tmp_path / name, step, kind)) for name in ("whole", "killed"))
            assert a == b
    assert job.open_now == 0


def test_with_a_lag_every_batch_is_that_many_versions_old(tmp_path, chat):
    config = make_config(steps=6, lag=2)
    drive(ScriptedJob(tmp_path, chat), config)
    logged = metrics_log.read(tmp_path)["driver"]
    for step in range(1, 7):
        samples, age = batch(tmp_path, step), min(2, step - 1)
        assert all(set(s.weight_versions[s.loss_mask]) == {step - 1 - age} for s in samples)
        assert logged[step]["rollout/staleness_mean"] == age
    assert not list((tmp_path / "rollouts" / "held").glob("*")), "none waits for ever"


@pytest.mark.parametrize("step", [1, 3])
def test_a_driver_that_is_killed_keeps_what_it_made_ahead(tmp_path, chat, step):
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    config = make_config(steps=6, lag=2)
    drive(ScriptedJob(tmp_path / "whole", chat), config)
    kill_after(ScriptedJob(tmp_path / "killed", chat), config, "rollouts/held", step + 1)
    drive(ScriptedJob(tmp_path / "killed", chat), config)
    for step in range(1, 7):
        a, b = (told(batch(tmp_path / name, step)) for name in ("whole", "killed"))
        assert a == b


def test_nothing_is_played_again_once_all_is_there(tmp_path, chat):
    drive(ScriptedJob(tmp_path, chat), make_config())
    job = ScriptedJob(tmp_path, chat)
    drive(job, make_config())
    assert not job.opened


def test_a_batch_whose_metrics_were_lost_gives_them_again(tmp_path, chat):
    drive(ScriptedJob(tmp_path, chat), make_config())
    first = metrics_log.read(tmp_path)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "metrics.jsonl").write_text("".join(li for li in lines if '"step": 2' not in li))
    drive(ScriptedJob(tmp_path, chat), make_config())
    again = metrics_log.read(tmp_path)
    assert again["driver"][2].keys() == first["driver"][2].keys()
    assert again["driver"][2] == pytest.approx(first["driver"][2], rel=1e-6)


def test_a_damaged_batch_is_moved_aside_and_made_again(tmp_path, chat):
    config = make_config(steps=2)
    drive(ScriptedJob(tmp_path, chat), config)
    path = batch_path(tmp_path, "rollouts", 2)
    whole = told(batch(tmp_path, 2))
    path.write_bytes(path.read_bytes()[:-100])

    class Behind(ScriptedJob):
        async def weights(self) -> int | None:
            """A trainer that cannot read step 2 stays at version 1."""
            if self.trained < 1 or path.exists():
                await super().weights()
            self.trained = min(self.trained, 2 if path.exists() else 1)
            for engine in self.engines:
                engine.version = self.trained
            return self.trained

    drive(Behind(tmp_path, chat), config)
    assert told(batch(tmp_path, 2)) == whole
    assert path.with_name("step_000002.parquet.corrupt").exists()


def test_a_damaged_batch_that_is_trained_is_left_out(tmp_path, chat):
    config = make_config(steps=2)
    drive(ScriptedJob(tmp_path, chat), config)
    path = batch_path(tmp_path, "rollouts", 1)
    path.write_bytes(b"")
    job = ScriptedJob(tmp_path, chat, trained=2)
    drive(job, config)
    assert not path.exists() and not job.opened


def test_files_of_another_run_are_refused(tmp_path, chat):
    drive(ScriptedJob(tmp_path, chat), make_config())
    driver = Driver(tmp_path, make_config(), "other", ScriptedJob(tmp_path, chat), chat)
    with pytest.raises(UserError, match=r"step_000001.parquet belongs to a run of identity id"):
        asyncio.run(driver.run())


def test_weights_that_change_under_a_batch_do_not_enter_it(tmp_path, chat):
    """A trainer that restarts pushes an older version while step 2 is generated."""
    config = make_config(steps=2)
    config.eval.every = 0

    class Restarting(ScriptedJob):
        pushed = 0

        async def engine(self, number):
            engine = await super().engine(number)
            if self.trained == 1 and Restarting.pushed < 4:
                Restarting.pushed += 1
                return DicedEngine(self.chat, version=0)
            return engine

    drive(Restarting(tmp_path, chat), config)
    assert all(set(s.weight_versions[s.loss_mask]) == {1} for s in batch(tmp_path, 2))
    stats = read_info(batch_path(tmp_path, "rollouts", 2)).stats
    assert stats[f"replaced/{EndReason.stale}"] == 4


def test_a_slow_sample_does_not_hold_back_the_others(tmp_path, chat):
    config = make_config(steps=1, max_concurrent_samples=12)
    config.eval.every = 0
    done: list[str] = []

    class OneSlow(ScriptedJob):
        async def engine(self, number):
            reply = Slow(0.3, bash("solve")) if number == 0 else "TASK_COMPLETE"

            class Fixed(ScriptedEngine):
                async def generate(self, input_ids, **asked):
                    out = await self.answer(reply, asked["max_new_tokens"])
                    done.append(asked["rid"])
                    return out

            return Fixed(self.chat)

    drive(OneSlow(tmp_path, chat), config)
    assert "-1-1-0-0-0-" in done[-1] or done[-1].endswith("-1-1-0-0-0-2")


def test_sandboxes_of_an_external_server_are_asked_at_its_address(monkeypatch):
    async def opened(url: str, *args: float, **limits: float) -> tuple[Any, ...]:
        return url, *args, limits

    monkeypatch.setattr(endpoints_module.EnvSession, "open", opened)
    sandbox = SandboxConfig(url="http://127.0.0.1:8000", start_timeout_s=7.0)
    # Without signals: there is no environment server that would publish its address.
    endpoints = endpoints_module.Endpoints(RunConfig(sandbox=sandbox), signals=None)
    asked = asyncio.run(endpoints.open_sandbox())
    assert asked == ("http://127.0.0.1:8000", 7.0, {"reset_timeout_s": 7.0})
