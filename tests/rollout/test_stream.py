"""Fully asynchronous rollout against a scripted trainer, engines and sandboxes."""

import asyncio
import itertools
import json
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from glm52_tbench2.config import metrics_log
from glm52_tbench2.config.schema import BatchOrder, Mode
from glm52_tbench2.rollout import player as player_module
from glm52_tbench2.rollout import stream as stream_module
from glm52_tbench2.rollout.batch import batch_path, read_info
from glm52_tbench2.rollout.driver import Driver
from glm52_tbench2.rollout.ledger import Ledger
from glm52_tbench2.rollout.player import RolloutError

from .fakes import SandboxError
from .job import ScriptedJob, batch, drive, make_config

GROUP, PER_STEP = 4, 3


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    real = asyncio.sleep
    monkeypatch.setattr(player_module.asyncio, "sleep", lambda s: real(min(s, 0.01)))


def config(steps: int = 5, **changes: Any):
    return make_config(steps, mode=Mode.fully_async, **({"max_concurrent_samples": 24} | changes))


class SlowTrainer(ScriptedJob):
    """Trains a batch in as long as it takes to be asked for weights a few times."""

    asked = 0

    async def weights(self) -> int | None:
        self.asked += 1
        if self.asked % 3 == 0 and batch_path(self.run_dir, "rollouts", self.trained + 1).exists():
            self.trained += 1
        for engine in self.engines:
            engine.version = self.trained
        return self.trained


def ledger(run_dir: Path) -> list[dict[str, Any]]:
    lines = (run_dir / "rollouts" / "ledger.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def groups(run_dir: Path, steps: int) -> list[list[int]]:
    return [sorted({s.group for s in batch(run_dir, step)}) for step in range(1, steps + 1)]


def check_batches(run_dir: Path, steps: int, staleness: int | None) -> None:
    """Each is whole, of groups of its own, and no token is older than allowed."""
    seen: set[int] = set()
    for step in range(1, steps + 1):
        samples = batch(run_dir, step)
        places = Counter(s.group for s in samples)
        assert len(places) == PER_STEP and set(places.values()) == {GROUP}
        assert not seen & places.keys()
        seen |= places.keys()
        assert all(len({s.task_id for s in samples if s.group == g}) == 1 for g in places)
        assert len({s.sample_id for s in samples}) == len(samples)
        versions = [int(v) for s in samples for v in s.weight_versions[s.loss_mask]]
        assert max(versions) <= step - 1
        if staleness is not None:
            assert min(versions) >= step - 1 - staleness


@pytest.mark.parametrize("order", BatchOrder)
@pytest.mark.parametrize("staleness", [None, 0, 1, 2])
def test_a_run_from_its_first_evaluation_to_its_last(tmp_path, chat, staleness, order):
    job = SlowTrainer(tmp_path, chat)
    drive(job, config(max_staleness=staleness, batch_order=order))
    check_batches(tmp_path, 5, staleness)
    assert job.open_now == 0 and job.most_open <= 24
    for step in (0, 2, 4, 5):
        evaluated = batch(tmp_path, step, "eval")
        assert len(evaluated) == 40
        assert {int(v) for s in evaluated for v in s.weight_versions[s.loss_mask]} == {step}
    assert not list((tmp_path / "rollouts" / "pending").iterdir())
    # Nothing is generated that no batch takes.
    started = {(e["group"], e["index"]) for e in ledger(tmp_path) if e["event"] == "start"}
    assert len(started) == 5 * PER_STEP * GROUP
    logged = metrics_log.read(tmp_path)
    assert sorted(logged["driver"]) == [1, 2, 3, 4, 5]
    assert "rollout/dropped/max_staleness" not in logged["driver"][5]
    assert 0 < logged["driver"][3]["rollout/slots_busy_share"] <= 1


def test_it_generates_while_the_trainer_trains(tmp_path, chat):
    drive(SlowTrainer(tmp_path, chat), config(steps=6))
    metrics = metrics_log.read(tmp_path)["driver"]
    assert max(m["rollout/staleness_max"] for m in metrics.values()) >= 1


class Killed(SlowTrainer):
    """Kills the driver at its n-th episode."""

    left = 0
    victim: "asyncio.Task[Any] | None" = None

    async def engine(self, number: int) -> Any:
        self.left -= 1
        if self.left == 0 and self.victim is not None:
            self.victim.cancel()
        return await super().engine(number)


@pytest.mark.parametrize("staleness", [None, 1])
@pytest.mark.parametrize("seed", range(3))
def test_a_driver_killed_again_and_again_loses_only_what_was_in_flight(
    tmp_path, chat, seed, staleness
):
    rng = random.Random(seed)
    job, given = Killed(tmp_path, chat), config(steps=4, max_staleness=staleness)
    given.eval.every = 0

    async def until_killed() -> bool:
        job.left, job.victim = rng.randint(10, 40), asyncio.current_task()
        with suppress(asyncio.CancelledError):
            await Driver(tmp_path, given, "id", job, chat).run()
            return True
        return False

    kills = 0
    while not asyncio.run(until_killed()):
        kills += 1
    assert kills
    check_batches(tmp_path, 4, staleness)
    events = ledger(tmp_path)
    ends = Counter((e["group"], e["index"]) for e in events if e.get("reason") == "driver")
    starts = Counter((e["group"], e["index"]) for e in events if e["event"] == "start")
    # Whatever was finished was not played again, and whatever was lost is told.
    assert all(starts[place] == 1 + ends[place] for place in starts)
    told = metrics_log.read(tmp_path)["driver"].values()
    assert sum(m.get("rollout/replaced/driver", 0) for m in told) == sum(ends.values())


class Kill(BaseException):
    """kill -9, as far as files can tell."""


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize(
    "moment",
    [(Ledger, "keep"), (Ledger, "batch"), (Driver, "_write"), (Driver, "_log_metrics"),
     (Ledger, "forget")],
    ids=lambda moment: moment[1],
)  # fmt: skip
def test_a_kill_between_any_two_files_leaves_the_books_right(
    tmp_path, chat, monkeypatch, moment, nth, after
):
    """Before and after each write; the third is the run's last, or one in the midst of samples."""
    owner, name = moment
    original, calls = getattr(owner, name), itertools.count(1)

    def dying(*args: Any) -> Any:
        mine = next(calls) == nth
        if mine and not after:
            raise Kill
        found = original(*args)
        if mine:
            raise Kill
        return found

    given = config(steps=3)
    given.eval.every = 0
    monkeypatch.setattr(owner, name, dying)
    with pytest.raises(Kill):
        drive(SlowTrainer(tmp_path, chat), given)
    monkeypatch.setattr(owner, name, original)
    drive(SlowTrainer(tmp_path, chat), given)
    check_batches(tmp_path, 3, None)
    assert not list((tmp_path / "rollouts" / "pending").iterdir())
    lost = sum(e["event"] == "lost" for e in ledger(tmp_path))
    told = metrics_log.read(tmp_path)["driver"].values()
    assert sum(m.get("rollout/replaced/driver", 0) for m in told) == lost


def test_a_lost_sandbox_costs_its_sample_alone(tmp_path, chat):
    lost: Counter[str] = Counter()

    def lose(task_id: str, opened: int) -> Exception | None:
        if opened % 5:
            return None
        lost[task_id] += 1
        return SandboxError("gone")

    job = SlowTrainer(tmp_path, chat, lose=lose)
    given = config(steps=4)
    given.eval.every = 0
    drive(job, given)
    check_batches(tmp_path, 4, None)
    assert lost
    replaced = [read_info(batch_path(tmp_path, "rollouts", s)).stats for s in range(1, 5)]
    assert sum(stats.get("replaced/sandbox", 0) for stats in replaced) == lost.total()
    assert sum(job.opened.values()) == 4 * PER_STEP * GROUP + lost.total()
    assert sum(e.get("reason") == "sandbox" for e in ledger(tmp_path)) == lost.total()


def test_a_group_that_a_filter_drops_is_replaced_and_its_tokens_are_told(tmp_path, chat):
    given = config(steps=3, filters=["check_reward_nonzero_std"], max_staleness=1)
    given.eval.every = 0

    def dull(task_id: str, solved: bool) -> float:
        return 0.0 if hash(task_id) % 2 else float(solved)

    drive(SlowTrainer(tmp_path, chat, reward=dull), given)
    check_batches(tmp_path, 3, 1)
    stats = [read_info(batch_path(tmp_path, "rollouts", s)).stats for s in (1, 2, 3)]
    dropped = [e for e in ledger(tmp_path) if e["event"] == "dropped"]
    assert dropped
    cause = "check_reward_nonzero_std"
    assert sum(s.get(f"dropped/{cause}", 0) for s in stats) == len(dropped)
    assert sum(s.get(f"wasted/{cause}", 0) for s in stats) == sum(e["tokens"] for e in dropped)
    assert all(len({s.reward for s in batch(tmp_path, 1) if s.group == g}) > 1 for g in
               {s.group for s in batch(tmp_path, 1)})  # fmt: skip


def test_filters_that_leave_nothing_end_the_run_in_a_sentence(tmp_path, chat):
    given = config(filters=["check_reward_nonzero_std"])
    given.eval.every = 0
    job = SlowTrainer(tmp_path, chat, reward=lambda task_id, solved: 0.0)
    with pytest.raises(RolloutError, match="step 1 kept 0 of 3 groups after 27 draws"):
        drive(job, given)


class OneSlowTask(SlowTrainer):
    """A task whose episodes take long, among quick ones."""

    slow = ""

    async def open_sandbox(self) -> Any:
        sandbox, job = await super().open_sandbox(), self
        reset = sandbox.reset

        async def slowly(task_id: str) -> str:
            job.slow = job.slow or task_id
            if task_id == job.slow:
                await REAL_SLEEP(0.3)
            return await reset(task_id)

        sandbox.reset = slowly
        return sandbox


REAL_SLEEP = asyncio.sleep


@pytest.mark.parametrize("order", BatchOrder)
def test_the_bias_towards_short_episodes_is_measured_and_can_be_turned_off(tmp_path, chat, order):
    given = config(steps=4, batch_order=order, max_waiting_batches=3)
    given.eval.every = 0
    drive(OneSlowTask(tmp_path, chat), given)
    metrics = metrics_log.read(tmp_path)["driver"]
    first = metrics[1]
    if order is BatchOrder.in_order:
        assert groups(tmp_path, 4) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
        assert all(m["rollout/overtaken_groups"] == 0 for m in metrics.values())
        assert first["rollout/completion_bias"] == 1
    else:
        assert 0 not in groups(tmp_path, 4)[0]
        assert first["rollout/overtaken_groups"] >= 1
        assert first["rollout/completion_bias"] < 0.9


def test_a_failure_of_the_driver_itself_is_told_and_not_waited_for(tmp_path, chat, monkeypatch):
    monkeypatch.setattr(stream_module.schedule, "draw", lambda *a: 1 / 0)
    given = config()
    given.eval.every = 0
    with pytest.raises(ZeroDivisionError):
        drive(SlowTrainer(tmp_path, chat), given)


class Behind(SlowTrainer):
    """One engine serves the starting weights for ever."""

    async def weights(self) -> int | None:
        version = await super().weights()
        self.engines[1].version = 0
        return version


def test_tokens_of_an_engine_that_was_left_behind_are_not_trained(tmp_path, chat):
    given = config(steps=4, max_staleness=1)
    given.eval.every = 0
    drive(Behind(tmp_path, chat), given)
    check_batches(tmp_path, 4, 1)
    stats = [read_info(batch_path(tmp_path, "rollouts", s)).stats for s in range(1, 5)]
    assert sum(s.get("replaced/stale", 0) for s in stats) > 0
    assert sum(s.get("wasted/stale", 0) for s in stats) > 0


def test_damaged_leftovers_are_played_again(tmp_path, chat):
    pending = tmp_path / "rollouts" / "pending"
    pending.mkdir(parents=True)
    (pending / "000000-1.safetensors").write_bytes(b"half")
    with (tmp_path / "rollouts" / "ledger.jsonl").open("w") as file:
        file.write('{"event": "start", "group": 0, "index": 1}\n{"event": "sta')
    drive(SlowTrainer(tmp_path, chat), config(steps=2))
    check_batches(tmp_path, 2, None)
    assert read_info(batch_path(tmp_path, "rollouts", 1)).stats["replaced/driver"] == 1


@pytest.mark.parametrize("order", BatchOrder)
def test_a_batch_that_waited_for_a_group_is_made_when_a_filter_drops_it(tmp_path, chat, order):
    """The head of the line takes long and carries no signal; all others are there by then."""
    given = config(
        steps=2, batch_order=order, filters=["check_reward_nonzero_std"], max_staleness=1,
        max_concurrent_samples=100,
    )  # fmt: skip
    given.eval.every = 0
    job = OneSlowTask(tmp_path, chat)
    job.reward = lambda task_id, solved: 0.0 if task_id == job.slow else float(solved)

    async def in_time() -> None:
        async with asyncio.timeout(60):
            await Driver(tmp_path, given, "id", job, chat).run()

    asyncio.run(in_time())
    check_batches(tmp_path, 2, 1)


@pytest.mark.parametrize("staleness", [None, 1])
def test_a_batch_that_is_trained_and_lost_is_not_made_of_later_weights(tmp_path, chat, staleness):
    given = config(steps=4, max_staleness=staleness)
    given.eval.every = 0
    drive(SlowTrainer(tmp_path, chat), given)
    for step in (2, 4):
        batch_path(tmp_path, "rollouts", step).unlink()
    drive(SlowTrainer(tmp_path, chat, trained=3), given)
    assert not batch_path(tmp_path, "rollouts", 2).exists()
    assert len(batch(tmp_path, 4)) == PER_STEP * GROUP
