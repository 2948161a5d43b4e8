"""One shell that lives through an episode.

The shell reads its script from a pipe. Each command goes in as one quoted word to `eval`, so
nothing in it can leave its quotes; its standard input is empty, and the pipes that serve us are
closed while it runs. That it has ended is told on a pipe of its own, under a name drawn anew for
each command, so no output is ever taken for it. A shell that exits, or whose command is killed at
its time limit, is followed by a new one in the same folder.
"""

import os
import re
import secrets
import shlex
import subprocess
import time
from contextlib import ExitStack, closing, suppress

from .dockerfile import Recipe
from .namespace import START_TIMEOUT_S, Namespace, end
from .pipes import Input, Output, Pipe, pump
from .sandbox import ExecResult, SandboxError

_STATUS = re.compile(rb" (\d{1,3}) (\d{1,9}) ([^\0]*)\0")
# bash 5.2 corrupts its memory over a command substitution that is not closed, and dies of it in a
# later command.
UNFINISHED = re.compile("^bash: .*(?:syntax error|unexpected EOF)", re.MULTILINE)
_STATUS_BYTES = 1 << 14
_READ_COMMANDS = "exec -a bash /usr/bin/bash --noprofile --norc -s"


def limits_script(memory_mb: int, max_processes: int) -> str:
    """Lines of shell that limit what starts after them.

    `memory_mb`: private memory of one process, MiB; `max_processes`: alive in the sandbox.
    """
    # A limit that cannot be set is one that this process may not exceed already.
    # oom_score_adj: the first to go when memory runs out, whatever else this machine runs.
    return (
        f"ulimit -c 0; ulimit -d {memory_mb * 1024}; ulimit -u {max_processes}; "
        "echo 1000 > /proc/self/oom_score_adj"
    )


class Shell:
    """The persistent shell. One command at a time."""

    def __init__(
        self,
        namespace: Namespace,
        folder: str,
        limits: str,
        output_bytes: int,
        recipe: Recipe,
    ) -> None:
        """Follows `recipe` under `limits` (lines of shell), then waits in `folder`.

        Raises SandboxError, with what was printed, when that fails.
        """
        self._namespace = namespace
        self._folder = folder
        self._env = recipe.env
        self._limits = limits
        self._output_bytes = output_bytes
        # One pipe for all shells of the episode: what an earlier one started still writes to it.
        self._printed = Pipe()
        self._open = ExitStack()
        self.pid = 0
        """The shell's process, as numbered inside."""
        try:
            self._start(f"mkdir -p -- {shlex.quote(folder)}\n{recipe.script}", recipe.payload)
        except BaseException:
            self.close()
            raise

    def run(self, command: str, timeout_s: float) -> ExecResult:
        """As :meth:`Sandbox.exec`."""
        if self._process.poll() is not None:  # something in the sandbox has killed it
            self._restart()
        before = self._namespace.processes()
        began = time.monotonic()
        output, printed = self.output(), self._printed.into
        status = self._send(
            f"builtin eval {shlex.quote(command)} </dev/null >&{printed} 2>&1 {printed}>&- "
            f"{self._status_in}>&-",
            [output],
            began + timeout_s,
        )
        seconds = time.monotonic() - began
        if status is not None:
            output.read_rest()
            code, self._folder = status
            if "$(" in command and UNFINISHED.search(output.text):
                self._namespace.kill(self._namespace.processes() - {self.pid})
                self._restart()
            return ExecResult(output.text, code, False, seconds)
        if self._process.poll() is None:
            with suppress(OSError):
                self._folder = os.readlink(f"{self._namespace.proc}/{self.pid}/cwd")
            self._namespace.kill(before - {self.pid})
            output.read_rest()
            self._restart()
            return ExecResult(output.text, None, True, seconds)
        output.read_rest()
        code = self._process.returncode
        self._restart()
        return ExecResult(output.text, code if code >= 0 else 128 - code, False, seconds)

    def output(self) -> Output:
        """What is written from now on by what the shell has started."""
        return Output(self._printed.out, self._output_bytes)

    def close(self) -> None:
        """Closes this end. The shell itself ends with its namespace."""
        self._open.close()
        self._printed.close()

    def _start(self, script: str = "", data: bytes = b"") -> None:
        self._open.close()
        status = self._open.enter_context(closing(Pipe()))
        self._status, self._status_in = status.out, status.into
        self._process = self._namespace.enter(
            ["/usr/bin/bash", "-c", f"{self._limits}\n{script}\n{_READ_COMMANDS}"],
            self._env,
            stdin=subprocess.PIPE,
            stdout=self._printed.into,
            stderr=subprocess.STDOUT,
            pass_fds=(self._printed.into, status.into),
        )
        self._open.callback(end, self._process)
        assert self._process.stdin is not None
        self._open.callback(self._process.stdin.close)
        self._ended = os.pidfd_open(self._process.pid)
        self._open.callback(os.close, self._ended)
        output = self.output()
        told = self._send(
            f"exec >/dev/null 2>&1; cd -- {shlex.quote(self._folder)} || cd /",
            [output],
            time.monotonic() + START_TIMEOUT_S,
            data,
        )
        if told is None:
            output.read_rest()
            raise SandboxError(f"no shell in the sandbox: {output.text.strip() or 'it ended'}")

    def _restart(self) -> None:
        try:
            self._start()
        except SandboxError:  # a job of the policy may end whatever enters: end the jobs
            self._namespace.kill(set())
            self._start()

    def _send(
        self, line: str, outputs: list[Output], deadline: float, data: bytes = b""
    ) -> tuple[int, str] | None:
        """Runs a line once `data` is read: its exit code and the folder then; None: no end."""
        token = secrets.token_hex(16).encode()
        status = Output(self._status, _STATUS_BYTES)

        def told() -> re.Match[bytes] | None:
            return _STATUS.match(status.raw.partition(token)[2])

        assert self._process.stdin is not None
        line += (
            f'; builtin printf "%s %s %s %s\\0" {token.decode()} $? $$ "$PWD" >&{self._status_in}\n'
        )
        # The first newline ends whatever a job may have written into this pipe by way of /proc.
        script = f"\n{line}".encode(errors="replace").replace(b"\0", b"")
        pump(
            [*outputs, status],
            Input(self._process.stdin.fileno(), data + script),
            self._ended,
            deadline,
            until=lambda: told() is not None,
        )
        found = told()
        if found is None:
            return None
        self.pid = int(found[2])
        return int(found[1]), os.fsdecode(found[3])
