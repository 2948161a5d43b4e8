"""What every sandbox provider fulfils.

A sandbox lives for one episode of one task.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..config.schema import SandboxConfig
from ..tasks.suite import Task


class SandboxError(Exception):
    """The sandbox failed, not the policy's command. It is of no further use."""


class NoCapacity(SandboxError):
    """Every sandbox of the server is taken. Opening a session later may succeed."""


@dataclass(frozen=True)
class ExecResult:
    """What a command gave."""

    output: str
    """stdout and stderr as they came, undecodable bytes replaced, cut at the sandbox's limit."""
    exit_code: int | None
    """None when it was killed at its time limit, or where the provider does not tell."""
    timed_out: bool
    """Killed at its time limit, with everything it had started."""
    seconds: float
    """Wall clock in the sandbox."""


@dataclass(frozen=True)
class Verdict:
    """What a task's own tests say of the sandbox as it is."""

    reward: float | None
    """1.0 or 0.0; None when there is no verdict."""
    error: str | None
    """Why there is no verdict; None when there is one."""
    output: str = ""
    """What tests/test.sh printed, for people."""


REWARD_BYTES = 64
"""What is read of /logs/verifier/reward.txt."""
_REWARDS = {b"1": 1.0, b"0": 0.0}


def verdict_of(reward: bytes, said: str) -> Verdict:
    """The verdict that tests/test.sh wrote, having printed `said`."""
    if reward.strip() in _REWARDS:
        return Verdict(_REWARDS[reward.strip()], None, said)
    wrote = f"wrote {reward!r} to" if reward else "wrote no"
    return Verdict(None, f"tests/test.sh {wrote} /logs/verifier/reward.txt", said)


class Sandbox(Protocol):
    """A task's machine. Its methods are called one at a time, except `close`."""

    def exec(self, command: str, timeout_s: float) -> ExecResult:
        """Runs `command` in the episode's shell: folder, variables and background jobs persist.

        After `timeout_s` seconds the command is killed with all it started; the shell is then a
        new one in the same folder. Raises SandboxError when the sandbox is gone.
        """
        ...

    def verify(self) -> Verdict:
        """Runs the task's tests against the files and processes as they are.

        The policy's commands never see the tests. Raises SandboxError when the sandbox is gone.
        """
        ...

    def close(self) -> None:
        """Ends every process and frees every byte. May be called twice, and from any thread."""
        ...


OpenSandbox = Callable[[Task, SandboxConfig], Sandbox]
"""How a provider makes a sandbox of a task, within the config's limits. Raises SandboxError."""
