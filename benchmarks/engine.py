"""Cost of an engine on this machine: python benchmarks/engine.py [OVERRIDE ...]

Starts the engine of experiment=smoke (with overrides, if any) and times its start and generation
for 1, 16 and 32 requests at once. A machine that is busy otherwise shows in the wall clock but not
in the CPU time beside it.
"""

import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import psutil

from glm52_tbench2.config.compose import compose, save_run_config
from glm52_tbench2.config.paths import ROOT, resolve
from glm52_tbench2.config.schema import RunConfig
from glm52_tbench2.engines import launch
from glm52_tbench2.engines.client import EngineClient

PROMPT_TOKENS, NEW_TOKENS = 200, 96


class Server:
    """A running engine."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self._process = psutil.Process(pid)

    def cpu_s(self) -> float:
        """CPU seconds of all its processes."""
        tree = [self._process, *self._process.children(recursive=True)]
        return sum(sum(process.cpu_times()[:2]) for process in tree)

    def memory_mb(self) -> float:
        """Memory of all its processes, what they share counted once, MiB."""
        tree = [self._process, *self._process.children(recursive=True)]
        return sum(process.memory_full_info().pss for process in tree) / 2**20


@contextmanager
def served(config: RunConfig, run_dir: Path) -> Iterator[Server]:
    """The engine of `config`, in processes of its own."""
    save_run_config(config, run_dir)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = [sys.executable, "-m", "glm52_tbench2.engines.launch", "--run", str(run_dir)]
    argv += ["--index", "0", "--host", "127.0.0.1", "--port", str(port)]
    began = time.perf_counter()
    with (run_dir / "engine.log").open("wb") as log:
        process = subprocess.Popen(argv, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    server = Server(f"http://127.0.0.1:{port}", process.pid)
    try:
        while not asyncio.run(answers(server.url)):
            if process.poll() is not None:
                sys.exit((run_dir / "engine.log").read_text()[-3000:])
        wall = time.perf_counter() - began
        row("start", f"{wall:.1f} s", server.cpu_s(), f"{server.memory_mb():.0f} MiB")
        yield server
    finally:
        process.kill()
        process.wait()
        launch.remove_scratch(run_dir, 0)


async def answers(url: str) -> bool:
    """Whether the server is ready."""
    async with EngineClient(url, 5) as client:
        return await client.health()


def row(name: str, wall: str, cpu_s: float, more: str = "") -> None:
    """Prints one line."""
    print(f"{name:<34}{wall:>14}   CPU {cpu_s:6.2f} s   {more}")


async def generate(http: aiohttp.ClientSession, number: int, tokens: int = NEW_TOKENS) -> int:
    """Tokens of one request; the first 40 of its prompt are those of all the others."""
    prompt = [20 + (i if i < 40 else i * (number + 3)) % 200 for i in range(PROMPT_TOKENS)]
    sampling = {"max_new_tokens": tokens, "temperature": 0.8, "sampling_seed": number}
    # Unlike the engine's client: every request runs to its length.
    body = {"input_ids": prompt, "sampling_params": {**sampling, "ignore_eos": True}}
    async with http.post("/generate", json={**body, "return_logprob": True}) as response:
        return len((await response.json())["output_ids"])


async def generations(server: Server, count: int) -> None:
    """Tokens a second of `count` requests at once."""
    async with aiohttp.ClientSession(server.url) as http:
        began, cpu_s = time.perf_counter(), server.cpu_s()
        asked = (generate(http, count * 100 + i) for i in range(count))
        tokens = sum(await asyncio.gather(*asked))
    wall, cpu_s = time.perf_counter() - began, server.cpu_s() - cpu_s
    more = f"{tokens / cpu_s:.0f} tokens a CPU second"
    row(f"{count} requests at once", f"{tokens / wall:.0f} tokens/s", cpu_s, more)


def main() -> int:
    config = compose(["experiment=smoke", *sys.argv[1:]])
    start = resolve(config.model.path)
    print(f"{start}, {config.cluster.threads_per_engine or 'all'} threads")
    with tempfile.TemporaryDirectory() as folder, served(config, Path(folder)) as server:
        for count in (1, 16, 32):
            asyncio.run(generations(server, count))
    return 0


if __name__ == "__main__":
    sys.exit(main())
