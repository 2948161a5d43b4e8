"""Cost of the asynchronous driver: python benchmarks/driver.py [--episodes N] [--concurrent N]

Plays episodes of four turns against a stand-in engine: an HTTP server in another process, which
answers each request after a known latency. Sandboxes are stand-ins in process. Beside it, a plain
asyncio loop sends the same requests to the same server. CPU seconds are of this process alone.
"""

import argparse
import asyncio
import json
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from aiohttp import web
from rich.console import Console
from rich.table import Table

from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.paths import resolve
from glm52_tbench2.config.schema import RunConfig
from glm52_tbench2.engines.client import EngineClient
from glm52_tbench2.envs.client import ExecResult, Verdict
from glm52_tbench2.rollout.batch import batch_path
from glm52_tbench2.rollout.chat import ChatLayout
from glm52_tbench2.rollout.driver import Driver

TURNS = 4
LATENCY_S, EXEC_S = 0.5, 0.1


class StandInSandbox:
    """Takes EXEC_S for a command and rewards every second episode."""

    opened = 0

    async def reset(self, task_id: str) -> str:
        StandInSandbox.opened += 1
        self.reward = float(StandInSandbox.opened % 2)
        return "List the files of this folder, then say that you are done."

    async def exec(self, command: str, timeout_s: float) -> ExecResult:
        await asyncio.sleep(EXEC_S)
        return ExecResult("one two three\n" * 10, 0, False, EXEC_S)

    async def evaluate(self) -> Verdict:
        return Verdict(self.reward, None)

    async def close(self) -> None:
        pass


class StandIns:
    """Where the driver's episodes are played; the trainer trains a batch when it is there."""

    def __init__(self, run_dir: Path, url: str) -> None:
        self.run_dir, self.trained = run_dir, 0
        self.client = EngineClient(url, 600.0)
        self.memory_mb: list[float] = []

    async def engine(self, number: int) -> EngineClient:
        return self.client

    async def open_sandbox(self) -> StandInSandbox:
        return StandInSandbox()

    async def weights_at(self, version: int) -> None:
        pass

    async def weights(self) -> int:
        while batch_path(self.run_dir, "rollouts", self.trained + 1).exists():
            self.trained += 1
            if self.trained > 2:  # nobody reads the older ones; the disk is not what is measured
                batch_path(self.run_dir, "rollouts", self.trained - 2).unlink(missing_ok=True)
            self.memory_mb.append(psutil.Process().memory_info().rss / 2**20)
        return self.trained


def serve_engine(ready: Any, turns: list[list[int]]) -> None:
    """Answers the n-th request of an episode with the n-th of `turns`, after LATENCY_S."""

    async def generate(request: web.Request) -> web.Response:
        asked = await request.json()
        ids = turns[min(int(asked["rid"].rpartition("-")[2]), TURNS - 1)]
        await asyncio.sleep(LATENCY_S)
        meta = {
            "output_token_logprobs": [[-0.5, token, None] for token in ids],
            "finish_reason": {"type": "stop"},
            "weight_versions": [{"version": "1000000", "start": 0, "end": len(ids)}],
            "cached_tokens": 0,
        }
        return web.json_response({"output_ids": ids, "meta_info": meta})

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/generate", generate)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
        await site.start()
        ready.send(site._server.sockets[0].getsockname()[1])  # type: ignore[union-attr]
        await asyncio.Event().wait()

    asyncio.run(main())


async def plain(url: str, bodies: list[dict[str, Any]], episodes: int, concurrent: int) -> None:
    """The same requests, and nothing else."""
    left = iter(range(episodes))
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def worker() -> None:
            for _ in left:
                for number, body in enumerate(bodies):
                    async with session.post(f"{url}/generate", json=body) as response:
                        json.loads(await response.text())
                    if number + 1 < TURNS:
                        await asyncio.sleep(EXEC_S)

        await asyncio.gather(*(worker() for _ in range(concurrent)))


def settings(episodes: int, concurrent: int) -> RunConfig:
    """The smoke experiment, asynchronous, with groups of the reference's size."""
    return compose(
        [
            "experiment=smoke",
            "rollout.mode=fully_async",
            f"steps={max(1, episodes // 64)}",
            "eval.every=0",
            "rollout.prompts_per_step=8",
            "rollout.samples_per_prompt=8",
            "rollout.max_session_tokens=2000",
            "rollout.max_waiting_batches=100",
            f"rollout.max_concurrent_samples={concurrent}",
            f"sandbox.max_concurrent={concurrent}",
        ]
    )


def main() -> None:
    """Prints one table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--episodes", type=int, default=8192)
    parser.add_argument("--concurrent", type=int, default=1024)
    given = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    config = settings(given.episodes, given.concurrent)
    chat = ChatLayout.load(resolve(config.model.path))
    command = chat.turn("```bash\nls -la | head\n```", ended=True)
    turns = [command] * (TURNS - 1) + [chat.turn("TASK_COMPLETE", ended=True)]
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=serve_engine, args=(there, turns), daemon=True
    )
    server.start()
    url = f"http://127.0.0.1:{here.recv()}"
    with tempfile.TemporaryDirectory() as folder:
        job = StandIns(Path(folder), url)
        driver = Driver(Path(folder), config, "identity", job, chat)  # type: ignore[arg-type]
        began, cpu = time.perf_counter(), time.process_time()

        async def drive() -> None:
            await driver.run()
            await job.client.close()

        asyncio.run(drive())
        wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    sample = {"rid": "x-0", "input_ids": command * 12, "return_logprob": True}
    bodies = [{**sample, "rid": f"x-{number}"} for number in range(TURNS)]
    plain_began, plain_cpu = time.perf_counter(), time.process_time()
    episodes = config.steps * 64
    asyncio.run(plain(url, bodies, episodes, given.concurrent))
    plain_s, plain_cpu_s = time.perf_counter() - plain_began, time.process_time() - plain_cpu
    server.kill()
    total = episodes * TURNS
    table = Table("", "wall", "turns/s", "CPU a turn")
    for name, wall, spent in (("driver", wall_s, cpu_s), ("plain loop", plain_s, plain_cpu_s)):
        table.add_row(name, f"{wall:.1f} s", f"{total / wall:.0f}", f"{1e3 * spent / total:.2f} ms")
    console = Console()
    console.print(f"{episodes} episodes of {TURNS} turns, {given.concurrent} at once")
    console.print(table)
    tenth = max(1, len(job.memory_mb) // 10)
    first, last = max(job.memory_mb[tenth : 2 * tenth + 1]), max(job.memory_mb[-tenth:])
    console.print(f"memory: {first:.0f} MiB after a tenth of the episodes, {last:.0f} at the end")


if __name__ == "__main__":
    main()
