"""A sandbox on a machine whose only door is "run this program and give me what it prints".

What :mod:`local` does from outside with namespaces, `inside.sh` does from inside with bash and
coreutils: a shell that lives through the episode, time limits that end whole process trees, output
that is cut. Nothing has to be installed in the image. The tests run as the image's user beside what
the policy has left running, as upstream's do: unlike the local sandbox, it does not hide /tests and
/logs from such jobs while they run.
"""

import base64
import binascii
import codecs
import itertools
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from ..config.schema import SandboxConfig
from ..tasks.suite import Task
from .dockerfile import pack_tests
from .sandbox import REWARD_BYTES, ExecResult, SandboxError, Verdict, verdict_of
from .shell import UNFINISHED

RUN_LABEL = "glm52-tbench2.run"
"""Key of the label that says to which run a machine belongs."""
_INSIDE = Path(__file__).with_name("inside.sh").read_text()
_SLICE_S = 20.0
"""Longest single call: connections on which nothing happens for longer are cut by what lies
between."""
_MARGIN_S = 30.0
"""Given to a call beyond the time it takes by itself, seconds."""
_TRIES = 3


class Machine(Protocol):
    """A provider's machine. Calls of `run` come one at a time."""

    def run(self, command: Sequence[str], data: bytes, timeout_s: float) -> bytes:
        """Runs a program as the image's user, `data` on its standard input; its standard output.

        Raises SandboxError when the machine is gone or does not answer within `timeout_s` seconds.
        """
        ...

    def close(self) -> None:
        """Removes the machine. May be called twice, and from any thread."""
        ...


def new_name() -> str:
    """A name for a machine that no other has."""
    return f"glm52-{secrets.token_hex(8)}"


@contextmanager
def turn(queue: "threading.Lock | threading.Semaphore", deadline: float) -> Iterator[None]:
    """A turn, waited for until `deadline` (monotonic seconds). Raises SandboxError without one."""
    if not queue.acquire(timeout=max(deadline - time.monotonic(), 0.0)):
        raise SandboxError("sandbox.max_starting others were being made until its time was over")
    try:
        yield
    finally:
        queue.release()


def started(
    machine: Machine, start: Callable[[], None], task: Task, config: SandboxConfig
) -> "RemoteSandbox":
    """The task's sandbox on a machine that `start` starts; one that does not start is closed.

    Raises SandboxError.
    """
    try:
        start()
    except SandboxError as error:
        machine.close()
        raise SandboxError(f"task {task.id} cannot be set up: {error}") from error
    except BaseException:
        machine.close()
        raise
    return RemoteSandbox(task, config, machine)


class RemoteSandbox:
    """A task's sandbox on `machine`, as :class:`Sandbox` describes."""

    def __init__(self, task: Task, config: SandboxConfig, machine: Machine) -> None:
        """Takes the machine over, also when it raises SandboxError."""
        self._task, self._config, self._machine = task, config, machine
        self._busy = threading.Lock()
        self._closed = False
        try:
            self._shell = _Shell(machine, task.workdir, config.output_bytes)
            self._shell.call("start")
        except BaseException:
            self.close()
            raise

    def exec(self, command: str, timeout_s: float) -> ExecResult:
        """As :meth:`Sandbox.exec`."""
        with self._busy:
            self._check()
            result = self._shell.run(command, timeout_s)
            if "$(" in command and UNFINISHED.search(result.output):
                self._shell.call("restart")
            return result

    def verify(self) -> Verdict:
        """As :meth:`Sandbox.verify`."""
        with self._busy:
            self._check()
            timeout_s = self._config.verifier_timeout_s or self._task.verifier_timeout_s
            shell = _Shell(self._machine, self._task.workdir, self._config.output_bytes)
            shell.call("stage", self._shell.key, data=pack_tests(self._task.tests))
            result = shell.run("bash /tests/test.sh", timeout_s)
            reward = _decoded(shell.call("judge").strip())[:REWARD_BYTES]
            if result.timed_out:
                error = f"tests/test.sh was killed after {timeout_s:g} s"
                return Verdict(None, error, result.output)
            return verdict_of(reward, result.output)

    def close(self) -> None:
        """As :meth:`Sandbox.close`."""
        self._closed = True
        self._machine.close()

    def _check(self) -> None:
        if self._closed:
            raise SandboxError("the sandbox is closed")


class _Shell:
    """The near side of a shell that `inside.sh` keeps."""

    def __init__(self, machine: Machine, folder: str, output_bytes: int) -> None:
        self._machine, self._folder, self._output_bytes = machine, folder, output_bytes
        self.key = secrets.token_hex(16)
        """Its name inside."""
        self._numbers = itertools.count()

    def run(self, command: str, timeout_s: float) -> ExecResult:
        """As :meth:`Sandbox.exec`."""
        token = f"{self.key}-{next(self._numbers)}"
        data = command.encode(errors="replace").replace(b"\0", b"")
        deadline = time.monotonic() + timeout_s
        operation, silent = "run", 0
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            now_s, last = min(left, _SLICE_S), left <= _SLICE_S
            limits = (str(self._output_bytes), str(round(now_s * 1000)), str(int(last)))
            said = self.call(operation, token, *limits, data=data, extra_s=now_s).splitlines()
            operation, data = "await", b""
            if not said:  # the command has ended everything, what we ran beside it too
                silent += 1
                if silent == _TRIES:
                    raise SandboxError("its processes end whatever enters the sandbox")
            elif said[0] != b"running":
                return self._result(said)

    def call(self, operation: str, *arguments: str, data: bytes = b"", extra_s: float = 0) -> bytes:
        """What an operation of `inside.sh` prints."""
        command = ["bash", "-c", _INSIDE, "inside", self.key, self._folder, operation, *arguments]
        return self._machine.run(command, data, extra_s + _MARGIN_S)

    def _result(self, said: list[bytes]) -> ExecResult:
        try:
            head, folder, output = said
            state, code, milliseconds = head.split()
            self._folder = _decoded(folder).decode(errors="surrogateescape")
            raw = _decoded(output)
            seconds = int(milliseconds) / 1000
            exit_code = None if code == b"-" else int(code)
        except ValueError as error:
            raise SandboxError(f"the sandbox speaks in tongues: {said[:3]!r}"[:300]) from error
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(raw, final=len(raw) < self._output_bytes)
        return ExecResult(text, exit_code, state == b"killed", seconds)


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise SandboxError(f"the sandbox speaks in tongues: {text[:100]!r}") from error
