"""Cost of sandboxes and of environment steps: python benchmarks/env_steps.py [TASK]

Times one sandbox by itself (opening it, a command in its shell, its verdict), then steps a second
of a real environment server over OpenEnv, at 1 and at 16 sessions. A step is the command `true`.
"""

import asyncio
import resource
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median

from glm52_tbench2.config.compose import compose, save_run_config
from glm52_tbench2.config.paths import resolve
from glm52_tbench2.config.schema import RunConfig
from glm52_tbench2.envs.client import EnvSession
from glm52_tbench2.envs.local import LocalSandbox
from glm52_tbench2.tasks.suite import Task, load_suite

STEPS = 300


def timed(name: str, times: int, call: Callable[[], object]) -> None:
    """Prints the median wall clock of `call`, and the CPU time that children spent on each."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    walls = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        walls.append(time.perf_counter() - began)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - children.ru_utime - children.ru_stime
    print(f"{name:<34}{median(walls) * 1e3:9.2f} ms   CPU {cpu / times * 1e3:6.1f} ms")


def alone(task: Task, config: RunConfig) -> None:
    """One sandbox in this process."""
    timed("open and close a sandbox", 20, lambda: LocalSandbox(task, config.sandbox).close())
    with closing(LocalSandbox(task, config.sandbox)) as sandbox:
        timed("a command: true", STEPS, lambda: sandbox.exec("true", 30.0))
        timed("a command: ls -la", 50, lambda: sandbox.exec("ls -la", 30.0))
        timed("a verdict", 20, sandbox.verify)


@contextmanager
def served(config: RunConfig) -> Iterator[str]:
    """URL of a server of `config`, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        save_run_config(config, Path(folder))
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            port = free.getsockname()[1]
        began = time.perf_counter()
        argv = ["--run", folder, "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen([sys.executable, "-m", "glm52_tbench2.envs.server", *argv])
        try:
            while not answers(f"http://127.0.0.1:{port}/health"):
                time.sleep(0.02)
            print(f"{'start of the server':<34}{time.perf_counter() - began:9.2f} s")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


def answers(url: str) -> bool:
    """Whether `url` gives an answer."""
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


async def session(url: str, task: Task) -> tuple[float, float, float]:
    """(seconds to reset, per step, to the verdict) of one episode."""
    opened = await EnvSession.open(url)
    began = time.perf_counter()
    await opened.reset(task.id)
    ready = time.perf_counter()
    for _ in range(STEPS):
        await opened.exec("true", 30.0)
    stepped = time.perf_counter()
    await opened.evaluate()
    judged = time.perf_counter()
    await opened.close()
    return ready - began, (stepped - ready) / STEPS, judged - stepped


async def sessions(url: str, task: Task, count: int) -> None:
    """Prints what `count` sessions at once take."""
    began = time.perf_counter()
    all_of_them = await asyncio.gather(*(session(url, task) for _ in range(count)))
    total = time.perf_counter() - began
    reset, step, verdict = (median(values) for values in zip(*all_of_them, strict=True))
    print(
        f"{f'OpenEnv, {count} sessions':<34}{1 / step * count:9.0f} steps/s   "
        f"step {step * 1e3:.2f} ms, reset {reset * 1e3:.0f} ms, verdict {verdict * 1e3:.0f} ms, "
        f"{count / total:.1f} episodes/s"
    )


def main() -> int:
    config = compose(["experiment=smoke"])
    suite = load_suite(resolve(config.data.tasks_dir))
    task = suite[sys.argv[1]] if len(sys.argv) > 1 else next(iter(suite.values()))
    print(f"task {task.id}")
    alone(task, config)
    began = time.perf_counter()
    from glm52_tbench2.envs import wire  # noqa: F401

    print(f"{'import of the client':<34}{time.perf_counter() - began:9.2f} s")
    with served(config) as url:
        for count in (1, 16):
            asyncio.run(sessions(url, task, count))
    return 0


if __name__ == "__main__":
    sys.exit(main())
