"""A scripted job: a trainer, engines and sandboxes in process, for tests of the driver."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from glm52_tbench2.config.schema import (
    Advantage,
    BatchOrder,
    ClipConfig,
    DataConfig,
    EvalConfig,
    Mode,
    Overlong,
    RolloutConfig,
    RunConfig,
    SandboxConfig,
)
from glm52_tbench2.rollout.batch import Sample, batch_path, read_batch
from glm52_tbench2.rollout.driver import Driver

from .fakes import Generation, ScriptedEngine, ScriptedSandbox, Verdict, bash


def make_config(steps=3, **changes: Any) -> RunConfig:
    rollout = {
        "prompts_per_step": 3,
        "samples_per_prompt": 4,
        "temperature": 0.8,
        "max_turn_tokens": 60,
        "max_session_tokens": 400,
        "max_turns": 3,
        "episode_timeout_s": 30.0,
        "observation_chars": 100,
        "system_prompt": "sys",
        "max_concurrent_samples": 5,
        "filters": ["check_no_aborted"],
        "mode": Mode.sync,
        "max_staleness": None,
        "groups_per_draw": 1,
        "lag": 0,
        "batch_order": BatchOrder.first_finished,
        "max_waiting_batches": 1,
    } | changes
    return RunConfig(
        seed=changes.pop("seed", 1),
        steps=steps,
        data=DataConfig(train="mini/mini8", eval="mini/eval20"),
        rollout=RolloutConfig(**rollout),
        clip=ClipConfig(
            advantage=Advantage.grpo, std_normalise=True, overlong=Overlong.keep,
            overlong_buffer=300, overlong_factor=0.5,
        ),
        sandbox=SandboxConfig(max_concurrent=16, command_timeout_s=5.0),
        eval=EvalConfig(every=2, samples_per_task=2, temperature=0.8),
    )  # fmt: skip


class DicedEngine(ScriptedEngine):
    """Solves or fails as the seed of the request says, each in its own time."""

    async def generate(self, input_ids: list[int], **asked: Any) -> Generation:
        self.requests.append({"input_ids": input_ids, **asked})
        dice = np.random.default_rng([asked["seed"], self.version])
        reply = dice.choice([bash("solve"), bash("look"), "TASK_COMPLETE", "hm"])
        await asyncio.sleep(np.random.default_rng().random() * 0.01)
        return await self.answer(reply, asked["max_new_tokens"])


@dataclass
class ScriptedJob:
    """Endpoints of a job, and a trainer that trains each batch the moment it is there."""

    run_dir: Path
    chat: Any
    trained: int = 0
    lose: Any = None
    """Called with (task_id, how many sandboxes that task has had): an error to raise, or None."""
    reward: Any = None
    """Called with (task_id, solved): the verdict."""
    opened: Counter = field(default_factory=Counter)
    open_now: int = 0
    most_open: int = 0

    def __post_init__(self) -> None:
        self.engines = [DicedEngine(self.chat) for _ in range(2)]

    async def weights(self) -> int | None:
        while batch_path(self.run_dir, "rollouts", self.trained + 1).exists():
            self.trained += 1
        for engine in self.engines:
            engine.version = self.trained
        return self.trained

    async def weights_at(self, version: int) -> None:
        assert await self.weights() == version

    async def engine(self, number: int) -> ScriptedEngine:
        return self.engines[number % 2]

    async def open_sandbox(self) -> ScriptedSandbox:
        job, solved = self, []

        class Sandbox(ScriptedSandbox):
            async def reset(self, task_id: str) -> str:
                job.opened[task_id] += 1
                job.open_now += 1
                job.most_open = max(job.most_open, job.open_now)
                self.task_id = task_id
                error = job.lose and job.lose(task_id, job.opened[task_id])
                if error:
                    raise error
                return f"task {task_id}"

            async def exec(self, command: str, timeout_s: float) -> Any:
                if command == "solve":
                    solved.append(command)
                return await super().exec(command, timeout_s)

            async def evaluate(self) -> Verdict:
                reward = float(bool(solved))
                if job.reward:
                    reward = job.reward(self.task_id, bool(solved))
                return Verdict(reward=reward, error=None)

            async def close(self) -> None:
                job.open_now -= 1

        return Sandbox()


def drive(job: ScriptedJob, config: RunConfig) -> Driver:
    driver = Driver(job.run_dir, config, "id", job, job.chat)
    asyncio.run(driver.run())
    return driver


def batch(run_dir: Path, step: int, kind: str = "rollouts") -> list[Sample]:
    return read_batch(batch_path(run_dir, kind, step), "id", step)
