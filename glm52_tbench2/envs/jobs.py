"""Commands that run beside the episode's shell and can be written to, by what any sandbox can do.

A job's folder in the sandbox holds its input (a named pipe), its output, how much of that was
shown, and the number of its process group.
"""

import shlex

from .sandbox import ExecResult, Sandbox

_FOLDER = "/tmp/.jobs"


class Jobs:
    """The jobs of one sandbox, by name. Each call fails with exit code 1 for a name unknown to it.

    All raise SandboxError when the sandbox is gone.
    """

    def __init__(self, sandbox: Sandbox, timeout_s: float) -> None:
        """`timeout_s`: longest wait for each call itself, seconds."""
        self._sandbox = sandbox
        self._timeout_s = timeout_s

    def start(self, name: str, command: str) -> ExecResult:
        """Starts a job; one of the same name is forgotten."""
        run = f'setsid bash -c {shlex.quote(command)} <> "$job/in" > "$job/out" 2>&1 &'
        return self._run(
            name,
            'rm -rf "$job" && mkdir -p "$job" && mkfifo "$job/in" && echo 0 > "$job/shown" && {',
            run,
            'echo $! > "$job/pid"; }',
            known=False,
        )

    def write(self, name: str, text: str) -> ExecResult:
        """Sends `text` to the job's standard input."""
        return self._run(name, f'kill -0 "$pid" && printf %s {shlex.quote(text)} > "$job/in"')

    def view(self, name: str) -> ExecResult:
        """What the job has printed since the last look."""
        return self.wait(name, 0.0)

    def wait(self, name: str, seconds: float) -> ExecResult:
        """As `view`, once the job has ended or after `seconds`."""
        ticks = max(0, round(seconds / 0.05))
        return self._run(
            name,
            f"for ((i = 0; i < {ticks}; i++))",
            'do kill -0 "$pid" || break; sleep 0.05; done 2>/dev/null',
            'shown=$(cat "$job/shown"); size=$(stat -c %s "$job/out")',
            'tail -c +"$((shown + 1))" "$job/out" | head -c "$((size - shown))"',
            'echo "$size" > "$job/shown"',
            extra_s=seconds,
        )

    def kill(self, name: str) -> ExecResult:
        """Ends the job and what it has started in its process group."""
        return self._run(name, 'kill -KILL -- "-$pid"')

    def _run(self, name: str, *lines: str, known: bool = True, extra_s: float = 0.0) -> ExecResult:
        job = shlex.quote(f"{_FOLDER}/{name.replace('/', '_')}")
        find = ['pid=$(cat "$job/pid") || exit 1'] if known else []
        # In a subshell, so that its variables are not the episode's.
        script = "\n".join([f"(job={job}", *find, *lines, ")"])
        return self._sandbox.exec(script, self._timeout_s + extra_s)
