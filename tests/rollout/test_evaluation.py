"""An evaluation by itself: killed, gone on with, and told task by task."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from glm52_tbench2.config.schema import RunConfig
from glm52_tbench2.envs.client import SandboxError
from glm52_tbench2.rollout.batch import batch_path, read_info
from glm52_tbench2.rollout.driver import Driver
from glm52_tbench2.rollout.player import MAX_ATTEMPTS, RolloutError
from glm52_tbench2.tasks.sets import load_set

from .job import ScriptedJob, batch, drive, make_config

TASKS = load_set("mini/eval20").ids


def told(run_dir) -> list[dict]:
    return [json.loads(line) for line in (run_dir / "results.jsonl").read_text().splitlines()]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Attempts follow each other at once."""
    sleep = asyncio.sleep
    monkeypatch.setattr("glm52_tbench2.rollout.player.asyncio.sleep", lambda s: sleep(s / 1000))


def facts(samples) -> list[tuple]:
    return [(s.sample_id, s.task_id, s.reward, s.end_reason, s.tokens.tolist()) for s in samples]


def test_every_task_has_a_line_that_says_what_its_samples_say(tmp_path, chat):
    drive(ScriptedJob(tmp_path, chat), make_config(steps=0))
    samples, lines = batch(tmp_path, 0, "eval"), told(tmp_path)
    assert sorted(line["task_id"] for line in lines) == sorted(TASKS)
    for line in lines:
        own = [s for s in samples if s.task_id == line["task_id"]]
        assert line["samples"] == len(own) == 2 and line["missing"] == 0
        assert line["passes"] == sum(s.reward for s in own)
        assert line["pass_at"] == {"1": line["passes"] / 2, "2": float(line["passes"] > 0)}
        assert line["end_reasons"] == Counter(s.end_reason for s in own)
        assert line["generated_tokens"] == sum(s.num_generated for s in own)
    assert not list((tmp_path / "eval" / "pending").iterdir())


def kill_amidst(job: ScriptedJob, config: RunConfig, pending: Path) -> int:
    """Drives until some samples of an evaluation are done; how many."""

    async def run() -> None:
        driver = asyncio.create_task(Driver(job.run_dir, config, "id", job, job.chat).run())
        while len(list(pending.glob("*.safetensors"))) < 9:
            await asyncio.sleep(0.005)
        driver.cancel()
        await asyncio.wait([driver])

    asyncio.run(run())
    return len(list(pending.glob("*.safetensors")))


def test_a_killed_driver_plays_only_what_is_missing(tmp_path, chat):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    config = make_config(steps=0)
    for folder in (whole, killed):
        folder.mkdir()
    drive(ScriptedJob(whole, chat), config)
    kept = kill_amidst(ScriptedJob(killed, chat), config, killed / "eval" / "pending")
    with (killed / "results.jsonl").open("a") as file:
        file.write('{"task_id": "cut sho')  # as a kill leaves it

    second = ScriptedJob(killed, chat)
    drive(second, config)
    assert sum(second.opened.values()) == 2 * len(TASKS) - kept
    assert facts(batch(killed, 0, "eval")) == facts(batch(whole, 0, "eval"))
    assert read_info(batch_path(killed, "eval", 0)).stats["taken_over"] == kept
    assert sorted(line["task_id"] for line in told(killed)) == sorted(TASKS)

    drive(third := ScriptedJob(killed, chat), config)
    assert not third.opened


def test_so_it_does_of_an_evaluation_within_training(tmp_path, chat):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    config = make_config(steps=2)
    config.eval.every = 1
    for folder in (whole, killed):
        folder.mkdir()
    drive(ScriptedJob(whole, chat), config)
    kept = kill_amidst(
        ScriptedJob(killed, chat), config, killed / "eval" / "unfinished_000001" / "pending"
    )
    drive(second := ScriptedJob(killed, chat), config)
    training = config.rollout.prompts_per_step * config.rollout.samples_per_prompt
    assert sum(second.opened.values()) == 2 * 2 * len(TASKS) - kept + training
    for step in (0, 1, 2):
        assert facts(batch(killed, step, "eval")) == facts(batch(whole, step, "eval"))
    assert sorted(path.suffix for path in (killed / "eval").iterdir()) == [".parquet"] * 3
    assert not (killed / "results.jsonl").exists()


def test_a_damaged_sample_is_played_again(tmp_path, chat):
    pending = tmp_path / "eval" / "pending"
    pending.mkdir(parents=True)
    (pending / "000000-0.safetensors").write_bytes(b"PAR1")
    drive(ScriptedJob(tmp_path, chat), make_config(steps=0))
    assert len(batch(tmp_path, 0, "eval")) == 2 * len(TASKS)


def test_what_gets_no_verdict_is_missing_and_no_reward_of_0(tmp_path, chat):
    def lose(task: str, count: int) -> SandboxError | None:
        return SandboxError("gone") if task == TASKS[3] else None

    drive(ScriptedJob(tmp_path, chat, lose=lose), make_config(steps=0))
    (line,) = [line for line in told(tmp_path) if line["task_id"] == TASKS[3]]
    assert (line["samples"], line["missing"], line["pass_at"]) == (0, 2, {})
    assert line["reward_mean"] is None
    stats = read_info(batch_path(tmp_path, "eval", 0)).stats
    assert stats["missing"] == 2 and stats["replaced/sandbox"] == 2 * MAX_ATTEMPTS


def test_not_one_verdict_is_a_failure(tmp_path, chat):
    job = ScriptedJob(tmp_path, chat, lose=lambda task, count: SandboxError("gone"))
    with pytest.raises(RolloutError, match="not one sample"):
        drive(job, make_config(steps=0))
    assert not batch_path(tmp_path, "eval", 0).exists()
