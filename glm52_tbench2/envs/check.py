"""`glm52 tasks check`: the golden scan of a task set in real sandboxes."""

import asyncio
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path

from ..config.compose import compose
from ..config.errors import UserError
from ..config.paths import label_of
from ..config.schema import SandboxConfig, SandboxProvider
from ..tasks.check import Journal, Result, Runner, check_suite, evidence, report
from ..tasks.named import full_name, named_tasks
from ..tasks.suite import Task
from . import providers
from .client import EnvSession
from .sandbox import OpenSandbox, Sandbox, SandboxError, Verdict

# What decides no result.
_PACE = ("api_key_file", "max_concurrent", "max_starting", "start_timeout_s", "auto_stop_min")


def check(
    name: str,
    overrides: Sequence[str],
    out: Path,
    tasks_dir: Path | None = None,
    parallel: int = 4,
    fresh: bool = False,
) -> int:
    """Runs solution, nothing and the wrong attempt of each task of `name`; 0 when all are sound.

    Args:
        overrides: of the sandbox, as sandbox=docker; left out, the local one.
        out: folder of the results, which a second call goes on from.
        tasks_dir: folder of the tasks; None: they are in this repository.
        parallel: attempts at one time.
        fresh: forget the results that there are.

    Raises UserError for an unknown set and where sandboxes cannot be made.
    """
    if parallel < 1:
        raise UserError(f"--parallel is {parallel}; write a number above 0.")
    full = full_name(name)
    tasks = named_tasks(full, tasks_dir)
    config = sandbox_config(overrides)
    path = out / f"{full.replace('/', '-')}-{config.provider.name}.jsonl"
    facts = asdict(config).items()
    way = str({knob: value for knob, value in facts if knob not in _PACE})
    journal = Journal(path, way, fresh)
    # With the machine's name: sandboxes of a service are those of all machines that have its key.
    label = label_of(path / socket.gethostname())
    with closing(journal), scripted(config, tasks[0].id, label) as runner:
        try:
            return report(check_suite(tasks, runner, parallel, journal, _tell))
        finally:
            print(f"Results are kept in {path}; the same command goes on from them, --fresh anew.")


def sandbox_config(overrides: Sequence[str] = ()) -> SandboxConfig:
    """The local sandbox, or another by overrides of the group sandbox. Raises UserError."""
    for override in overrides:
        if not override.startswith(("sandbox=", "sandbox.")):
            raise UserError(
                f"Only the sandbox can be chosen here, not {override}; "
                "write sandbox=docker or sandbox.KNOB=VALUE."
            )
    return compose(["experiment=smoke", *overrides]).sandbox


@contextmanager
def scripted(config: SandboxConfig, task_id: str, label: str) -> Iterator[Runner]:
    """Runs a script, or nothing, in a fresh sandbox of a task and takes the verdict.

    `task_id`: any of the tasks; `label`: as of :func:`providers.opened`. At the end, an interrupt
    say, every sandbox that is still open is closed. Raises UserError where there can be none.
    """
    if config.provider is SandboxProvider.external:
        providers.check(config, task_id)
        yield lambda task, script: asyncio.run(_asked(config, task, script))
        return
    with providers.opened(config, label) as open_sandbox:
        attempts = _Attempts(config, open_sandbox)
        try:
            yield attempts.run
        finally:
            attempts.close()


class _Attempts:
    """Attempts in sandboxes of our own."""

    def __init__(self, config: SandboxConfig, open_sandbox: OpenSandbox) -> None:
        self._config, self._open_sandbox = config, open_sandbox
        self._opened: set[Sandbox] = set()
        self._ended = False

    def run(self, task: Task, script: str | None) -> Verdict:
        """As :data:`Runner`."""
        sandbox = self._open_sandbox(task, self._config)
        self._opened.add(sandbox)
        try:
            if self._ended:
                raise SandboxError("the scan is over")
            if script is not None:
                sandbox.exec(script, _limit(self._config, task))
            return sandbox.verify()
        finally:
            self._opened.discard(sandbox)
            sandbox.close()

    def close(self) -> None:
        """Ends those that still run."""
        self._ended = True
        for sandbox in list(self._opened):
            sandbox.close()


async def _asked(config: SandboxConfig, task: Task, script: str | None) -> Verdict:
    """An attempt by way of an external server."""
    assert config.url is not None
    session = await EnvSession.open(config.url, reset_timeout_s=config.start_timeout_s)
    try:
        await session.reset(task.id)
        if script is not None:
            await session.exec(script, _limit(config, task))
        return await session.evaluate()
    finally:
        await session.close()


def _limit(config: SandboxConfig, task: Task) -> float:
    # A solution is one command here, though an agent may take many.
    return max(config.command_timeout_s, task.agent_timeout_s)


def _tell(result: Result, done: int, total: int) -> None:
    live = sys.stderr.isatty()
    if live:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    if not result.ok:
        print(evidence(result), flush=True)
    if live:
        print(f"{done}/{total} {result.task}", end="", file=sys.stderr, flush=True)
        if done == total:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
    elif done % 50 == 0 and done < total:
        print(f"{done}/{total} attempts", file=sys.stderr, flush=True)
