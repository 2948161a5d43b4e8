"""Provider `local`: bubblewrap on this machine, no container engine and no image."""

import os
import subprocess
import threading
import time
from contextlib import ExitStack, closing

from ..config.schema import SandboxConfig
from ..tasks.suite import Task
from .dockerfile import pack_tests, read_recipe
from .namespace import TRUSTED_ENV, Namespace, check, end, unprivileged
from .pipes import Input, Output, Pipe, pump
from .sandbox import REWARD_BYTES, ExecResult, SandboxError, Verdict, verdict_of
from .shell import Shell, limits_script

__all__ = ["LocalSandbox", "check"]

# Runs with every capability of the sandbox's user namespace, in a mount namespace of its own. $1 is
# the working folder, $2 the pipe for the verdict, $3 the MiB of /tests; test.sh and its variables
# follow. What the policy may have removed is made anew.
_VERIFY = f"""set -e
mount -t tmpfs -o "nosuid,nodev,size=$3m" tmpfs /tests
mount -t tmpfs -o nosuid,nodev,size=64m tmpfs /logs
tar --no-same-owner -xpf - -C /
set +e
folder=$1 verdict=$2; shift 3
[ -d /tmp ] || mkdir -m 1777 /tmp
cd -- "$folder" 2>/dev/null || {{ mkdir -p -- "$folder"; cd -- "$folder"; }} || cd /
(eval "exec $verdict>&-"; exec "$@") </dev/null
[ ! -f /logs/verifier/reward.txt ] || read -r -d "" -n {REWARD_BYTES} < /logs/verifier/reward.txt
printf %s "$REPLY" >&"$verdict"
"""


class LocalSandbox:
    """A sandbox of this machine, as :class:`Sandbox` describes.

    How a verdict is kept sound while the policy's background processes live on, which tasks about
    servers and jobs need: the tests run in the policy's process and network namespaces, so that
    they see its processes and reach its ports, but in a mount namespace of their own, where /tests
    and /logs are file systems that the policy's processes cannot name. They hold one capability
    that no process of the policy has, so the kernel lets none of those trace them, look into
    their /proc entries or open files through them. The verdict leaves on a pipe that only the
    trusted script around test.sh holds. What test.sh itself runs is trusted by that test.
    """

    def __init__(self, task: Task, config: SandboxConfig) -> None:
        """Makes the task's environment. Raises SandboxError when that fails.

        Files live in memory: `config.disk_mb`, or the task's own limit, is a bound on both.
        """
        self._task, self._config = task, config
        self._busy = threading.Lock()
        self._shell: Shell | None = None
        self._memory_mb = config.memory_mb or task.memory_mb
        recipe = read_recipe(task.environment)
        self._env = recipe.env
        self._namespace = Namespace(config.disk_mb or task.storage_mb)
        try:
            self._shell = Shell(
                self._namespace,
                task.workdir,
                limits_script(self._memory_mb, config.max_processes),
                config.output_bytes,
                recipe,
            )
        except SandboxError as error:
            self.close()
            raise SandboxError(f"task {task.id} cannot be set up: {error}") from error
        except BaseException:
            self.close()
            raise

    def exec(self, command: str, timeout_s: float) -> ExecResult:
        """As :meth:`Sandbox.exec`."""
        with self._busy:
            return self._alive.run(command, timeout_s)

    def verify(self) -> Verdict:
        """As :meth:`Sandbox.verify`."""
        with self._busy:
            verdict, finished = self._run_tests()
            idle = {1, self._alive.pid}
            if verdict.reward is None and finished and self._namespace.processes() - idle:
                # A job of the policy may have ended the tests: it gets no second chance.
                self._namespace.kill(idle)
                verdict, _ = self._run_tests()
            return verdict

    def close(self) -> None:
        """As :meth:`Sandbox.close`."""
        self._namespace.close()  # a command that still runs ends with it
        with self._busy:
            if self._shell is not None:
                self._shell.close()
                self._shell = None

    @property
    def _alive(self) -> Shell:
        if self._shell is None:
            raise SandboxError("the sandbox is closed")
        return self._shell

    def _run_tests(self) -> tuple[Verdict, bool]:
        """(verdict, whether tests/test.sh ended within its time)."""
        timeout_s = self._config.verifier_timeout_s or self._task.verifier_timeout_s
        limits = limits_script(self._memory_mb, 2 * self._config.max_processes)
        env = {**self._env, "PYTHONNOUSERSITE": "1"}
        run = ["/usr/bin/bash", "-c", f"{limits}; exec /usr/bin/bash /tests/test.sh"]
        test = unprivileged(run, env, but="dac_override")
        tests = pack_tests(self._task.tests)
        size_mb = 16 + len(tests) * 2 // 2**20
        with closing(Pipe()) as told:
            command = ["/usr/bin/unshare", "--mount", "--propagation=private", "--"]
            command += ["/usr/bin/bash", "-c", _VERIFY, "verify", self._task.workdir]
            command += [str(told.into), str(size_mb), *test]
            code, said = self._run(command, tests, time.monotonic() + timeout_s, told.into)
            reward = Output(told.out, REWARD_BYTES)
            reward.read_rest()
        if code is None:
            return Verdict(None, f"tests/test.sh was killed after {timeout_s:g} s", said), False
        if code != 0:
            return Verdict(None, f"tests/test.sh was not run ({code}): {said[-500:]}", said), True
        return verdict_of(reward.raw, said), True

    def _run(
        self, command: list[str], data: bytes, deadline: float, told: int
    ) -> tuple[int | None, str]:
        """Runs trusted `command` on `data`, and ends what it has started and left.

        Returns its exit code, None if it did not end by `deadline`, and what it printed.
        """
        with closing(Pipe()) as printed, ExitStack() as opened:
            process = self._namespace.enter(
                command,
                TRUSTED_ENV,
                trusted=True,
                stdin=subprocess.PIPE,
                stdout=printed.into,
                stderr=subprocess.STDOUT,
                pass_fds=(told,),
            )
            assert process.stdin is not None
            ended = os.pidfd_open(process.pid)
            opened.callback(os.close, ended)
            opened.callback(process.stdin.close)
            output = Output(printed.out, self._config.output_bytes)
            background = self._alive.output()  # read too, so that no job waits for a reader
            source = Input(process.stdin.fileno(), data)
            pump([output, background], source, ended, deadline, at_end=process.stdin.close)
            code = process.poll()
            self._namespace.kill_apart()
            end(process)
            output.read_rest()
            return code, output.text
