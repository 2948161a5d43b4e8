"""Where sandboxes come from: one function to check a provider, one to use it."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ..config.errors import UserError
from ..config.schema import SandboxConfig, SandboxProvider
from . import daytona, docker, local
from .client import EnvSession
from .sandbox import OpenSandbox, SandboxError

_LOOK_S = 120.0
"""Longest look at an external server, seconds."""


def check(config: SandboxConfig, task_id: str) -> None:
    """Asks the provider for as little as shows that it would work.

    `task_id`: a task that will be played; only an external server is asked for it.
    Raises UserError with what is wrong and the mend.
    """
    if config.provider is SandboxProvider.external:
        asyncio.run(_check_external(config, task_id))
    else:
        _CHECKS[config.provider](config)


@contextmanager
def opened(config: SandboxConfig, label: str) -> Iterator[OpenSandbox]:
    """What makes sandboxes on the provider; all of them are gone at the end.

    `label`: marks the sandboxes of one run, so that what an earlier, killed process of the same
    run has left is removed too. Raises UserError where there can be none.
    """
    if config.provider is SandboxProvider.local:
        local.check()
        yield local.LocalSandbox
    elif config.provider is SandboxProvider.docker:
        with docker.opened(config, label) as open_sandbox:
            yield open_sandbox
    elif config.provider is SandboxProvider.daytona:
        with daytona.opened(config, label) as open_sandbox:
            yield open_sandbox
    else:
        raise UserError(
            f"With sandbox.provider={config.provider.name} no sandbox is made here; "
            "write sandbox=local."
        )


_CHECKS: dict[SandboxProvider, Callable[[SandboxConfig], None]] = {
    SandboxProvider.local: lambda config: local.check(),
    SandboxProvider.docker: lambda config: docker.check(),
    SandboxProvider.daytona: daytona.check,
}


async def _check_external(config: SandboxConfig, task_id: str) -> None:
    """Starts one task and runs one command; that verdicts carry the mark is seen at each."""
    url = config.url
    assert url is not None
    try:
        session = await EnvSession.open(url, _LOOK_S, reset_timeout_s=config.start_timeout_s)
    except SandboxError as error:
        raise UserError(
            f"sandbox.url is {url}, where no environment server answers ({_line(error)}); "
            "start it, or correct the address."
        ) from error
    try:
        instruction = await session.reset(task_id)
        said = await session.exec("echo ready", _LOOK_S)
        if not instruction or said.output.strip() != "ready":
            raise SandboxError(
                f"a task that says {instruction[:40]!r} and a shell that says {said.output[:40]!r}"
            )
    except SandboxError as error:
        raise UserError(
            f"The server at sandbox.url={url} does not speak the contract of OpenEnv's tbench2 "
            f"environment for the task {task_id} ({_line(error)}); give it that environment with "
            "the tasks of data.train and data.eval."
        ) from error
    finally:
        with suppress(SandboxError):
            await session.close()


def _line(error: Exception) -> str:
    """The end of what an error says, as part of a sentence."""
    return " ".join(str(error).split())[-300:].rstrip(".")
