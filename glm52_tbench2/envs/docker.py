"""Provider `docker`: a container of this machine's engine, by way of its command line."""

import os
import shutil
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from ..config.errors import UserError
from ..config.schema import SandboxConfig
from ..tasks.suite import Task, asked
from .pipes import Input, Output, pump
from .remote import RUN_LABEL, RemoteSandbox, new_name, started, turn
from .sandbox import OpenSandbox, SandboxError

_ASK_S = 20.0
_REMOVE_S = 60.0
_SWEEPS = 3
"""Times that leftovers are looked for and removed: an engine that has many is slow to answer."""
_SWEEP_PAUSE_S = 2.0
_LIFETIME_S = 24 * 3600
"""Longer than any episode; nobody else ends containers on a node that a run has lost."""
_END_S = 4.0
_ANSWER_BYTES = 16 * 2**20
_PROTOCOL_BYTES = 1 << 16


def check() -> None:
    """Asks the engine for its version. Raises UserError where there is none."""
    if shutil.which("docker") is None:
        raise UserError(
            "sandbox.provider=docker needs Docker, which is not installed; install Docker Engine, "
            "or write sandbox=local."
        )
    try:
        _docker("version", "--format", "{{.Server.Version}}", timeout_s=_ASK_S)
    except SandboxError as error:
        raise UserError(
            f"Docker's engine does not answer ({error}); start it, see to it that this user may "
            "use it (group docker), or write sandbox=local."
        ) from error


@contextmanager
def opened(config: SandboxConfig, label: str) -> Iterator[OpenSandbox]:
    """As :func:`providers.opened`."""
    check()
    for left in reversed(range(_SWEEPS)):
        try:
            sweep(label)
            break
        except SandboxError as error:
            if not left:
                raise UserError(
                    "Docker does not remove what an earlier process of this run has left "
                    f"({' '.join(str(error).split())}); look at: "
                    f"docker ps --all --filter label={RUN_LABEL}={label}"
                ) from error
        time.sleep(_SWEEP_PAUSE_S)
    engine = _Engine(config, label)
    try:
        yield engine.open
    finally:
        engine.end()
        with suppress(SandboxError):
            sweep(label)


def sweep(label: str) -> None:
    """Removes every container of a run. Raises SandboxError."""
    asked_for = ("ps", "--all", "--quiet", "--filter", f"label={RUN_LABEL}={label}")
    if found := _docker(*asked_for, timeout_s=_REMOVE_S).decode().split():
        _docker("rm", "--force", "--volumes", *found, timeout_s=_REMOVE_S)


class _Engine:
    """Makes containers of one run."""

    def __init__(self, config: SandboxConfig, label: str) -> None:
        self._label = label
        self._max_starting = config.max_starting
        self._starting = threading.BoundedSemaphore(config.max_starting)
        self._building: dict[str, threading.Lock] = defaultdict(threading.Lock)
        self._ended = threading.Event()

    def open(self, task: Task, config: SandboxConfig) -> RemoteSandbox:
        """A container of the task. Raises SandboxError."""
        container = _Container(config.output_bytes)
        deadline = time.monotonic() + config.start_timeout_s

        def start() -> None:
            with turn(self._starting, deadline):
                self._complain_ended()
                image = task.docker_image or self._built(task, deadline)
                self._complain_ended()  # a build takes long
                self._start(container, image, task, config, deadline)

        return started(container, start, task, config)

    def end(self) -> None:
        """Starts none any more, and waits a moment for those on their way."""
        self._ended.set()
        deadline = time.monotonic() + _END_S
        taken = 0
        while taken < self._max_starting and self._starting.acquire(
            timeout=max(deadline - time.monotonic(), 0.0)
        ):
            taken += 1
        if taken:
            self._starting.release(taken)  # whoever still waits there is to be told

    def _complain_ended(self) -> None:
        if self._ended.is_set():
            raise SandboxError("the run is over")

    def _start(
        self,
        container: "_Container",
        image: str,
        task: Task,
        config: SandboxConfig,
        deadline: float,
    ) -> None:
        _docker(
            *("run", "--detach", "--rm", "--init", "--name", container.name),
            *("--label", f"{RUN_LABEL}={self._label}", "--workdir", task.workdir),
            # Docker refuses more than it has.
            *("--cpus", f"{min(task.cpus, os.cpu_count() or 1):g}"),
            *("--pids-limit", str(config.max_processes)),
            *("--memory", f"{config.memory_mb or task.memory_mb}m"),
            *("--entrypoint", "sleep", image, f"{_LIFETIME_S}"),
            timeout_s=_left(deadline),
        )

    def _built(self, task: Task, deadline: float) -> str:
        """The image of the task's Dockerfile, made once for each content."""
        tag = f"glm52-tbench2:{asked(task)[:24]}"
        with turn(self._building[tag], deadline):
            with suppress(SandboxError):
                _docker("image", "inspect", "--format", "{{.Id}}", tag, timeout_s=_ASK_S)
                return tag
            _docker("build", "--tag", tag, str(task.environment), timeout_s=_left(deadline))
        return tag


class _Container:
    """A :class:`remote.Machine`."""

    def __init__(self, output_bytes: int) -> None:
        self.name = new_name()
        # Room for an output in base64 and what is told of it; a policy that is root may send more.
        self._most = 2 * output_bytes + _PROTOCOL_BYTES

    def run(self, command: Sequence[str], data: bytes, timeout_s: float) -> bytes:
        """As :meth:`Machine.run`."""
        done = _asked(["exec", "--interactive", self.name, *command], data, timeout_s, self._most)
        # Of a container that is gone the client speaks, with 1 or 125 to 127; 137 is a kill inside.
        if done.returncode not in (0, 137):
            raise SandboxError(_reason(done))
        return done.stdout

    def close(self) -> None:
        """As :meth:`Machine.close`."""
        with suppress(SandboxError):
            _docker("rm", "--force", "--volumes", self.name, timeout_s=_REMOVE_S)


def _left(deadline: float) -> float:
    """Seconds until then, and at least one, in which the engine can still say what is wrong."""
    return max(deadline - time.monotonic(), 1.0)


def _docker(*arguments: str, timeout_s: float) -> bytes:
    done = _asked(arguments, b"", timeout_s)
    if done.returncode != 0:
        raise SandboxError(_reason(done))
    return done.stdout


def _asked(
    arguments: Sequence[str], data: bytes, timeout_s: float, most: int = _ANSWER_BYTES
) -> subprocess.CompletedProcess[bytes]:
    """What the client says, of each output the first `most` bytes."""
    try:
        process = subprocess.Popen(
            ["docker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        raise SandboxError(f"docker: {error}") from error
    with process:
        assert process.stdin and process.stdout and process.stderr
        outputs = [Output(pipe.fileno(), most) for pipe in (process.stdout, process.stderr)]
        source, ended = Input(process.stdin.fileno(), data), os.pidfd_open(process.pid)
        try:
            deadline = time.monotonic() + timeout_s
            if not pump(outputs, source, ended, deadline, at_end=process.stdin.close):
                process.kill()
                raise SandboxError(f"docker {arguments[0]}: no answer in {timeout_s:g} s")
        finally:
            os.close(ended)
        for output in outputs:
            output.read_rest()
    return subprocess.CompletedProcess(
        arguments, process.returncode, *(output.raw for output in outputs)
    )


def _reason(done: subprocess.CompletedProcess[bytes]) -> str:
    said = (done.stderr.strip() or done.stdout.strip()).decode(errors="replace")
    return said[-2000:] or f"docker exited with {done.returncode}"
