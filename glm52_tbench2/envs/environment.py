"""One session of the environment server: tbench2's actions on one sandbox at a time."""

import shlex
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

from ..config.schema import SandboxConfig
from ..tasks.suite import Task, select
from .attended import ClientGone, attended
from .core import Environment
from .jobs import Jobs
from .models import HARNESS, Tbench2Action, Tbench2Observation, Tbench2State
from .sandbox import ExecResult, OpenSandbox, Sandbox, SandboxError


class TerminalEnvironment(Environment[Tbench2Action, Tbench2Observation, Tbench2State]):
    """One session: an episode in a sandbox, from `reset` to `close`.

    A failure of the sandbox is told in the observation's `error`, as upstream does. When its client
    is gone OpenEnv closes it, also while `reset` or `step` runs: what they do then fails.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(
        self, suite: Mapping[str, Task], config: SandboxConfig, open_sandbox: OpenSandbox
    ) -> None:
        super().__init__()
        self._suite, self._config, self._open_sandbox = suite, config, open_sandbox
        self._task: Task | None = None
        self._sandbox: Sandbox | None = None
        self._state = Tbench2State()
        # Not OpenEnv's thread of the session, in which `close` could not run beside an action.
        self._thread = ThreadPoolExecutor(1)
        self._abandoned = False

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> Tbench2Observation:
        """As `reset`. Raises ClientGone."""
        return await self._attended(lambda: self.reset(seed, episode_id, **kwargs))

    async def step_async(
        self, action: Tbench2Action, timeout_s: float | None = None, **kwargs: Any
    ) -> Tbench2Observation:
        """As `step`. Raises ClientGone."""
        return await self._attended(lambda: self.step(action, timeout_s, **kwargs))

    async def _attended(self, work: Callable[[], Tbench2Observation]) -> Tbench2Observation:
        try:
            return await attended(work, self._thread)
        except ClientGone:
            self._abandoned = True
            raise

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> Tbench2Observation:
        """Starts the episode of the task named `task_id`. Nothing here is random."""
        self.close()
        task = select(self._suite, [str(kwargs.get("task_id") or kwargs.get("task_name"))])[0]
        self._sandbox = self._open_sandbox(task, self._config)
        if self._abandoned:  # closed already, while the sandbox started
            self.close()
            raise ClientGone("the client is gone")
        self._jobs = Jobs(self._sandbox, self._config.command_timeout_s)
        self._task = task
        self._state = Tbench2State(
            episode_id=episode_id or str(uuid4()),
            task_id=task.id,
            task_path=str(task.path),
            terminal_ready=True,
        )
        info = {
            "verifier_timeout_sec": self._config.verifier_timeout_s or task.verifier_timeout_s,
            "command_timeout_s": self._config.command_timeout_s,
        }
        return self._observation("reset", info=info)

    def step(
        self, action: Tbench2Action, timeout_s: float | None = None, **kwargs: Any
    ) -> Tbench2Observation:
        """Does one action. Raises RuntimeError before `reset` and after `close`."""
        if self._sandbox is None:
            raise RuntimeError("there is no episode in this session; reset it with a task_id")
        act = _ACTIONS.get(action.action_type)
        self._state.step_count += 1
        self._state.last_action_type = action.action_type
        self._state.last_command = action.command
        self._state.session_id = action.session_id or ""
        try:
            if act is None:
                known = ", ".join(_ACTIONS)
                raise ValueError(f"there is no action {action.action_type!r}; there are {known}")
            seen = act(self, action)
        except (SandboxError, ValueError) as error:
            seen = self._observation(action.action_type, success=False, error=str(error))
        self._state.last_output = seen.output
        seen.session_id = action.session_id
        return seen

    @property
    def state(self) -> Tbench2State:
        """Where the episode stands."""
        return self._state

    def close(self) -> None:
        """Ends the episode and its sandbox. May be called from any thread."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.close()
        self._task = None
        self._state.terminal_ready = False

    def _exec(self, action: Tbench2Action) -> Tbench2Observation:
        if not action.block:
            return self._result(action, self._jobs.start(_name(action), action.command))
        limit = self._config.command_timeout_s
        if action.wait_seconds is not None and action.wait_seconds > 0:
            limit = min(limit, action.wait_seconds)
        return self._result(action, self._running.exec(action.command, limit))

    def _write(self, action: Tbench2Action) -> Tbench2Observation:
        return self._result(action, self._jobs.write(_name(action), action.command))

    def _view(self, action: Tbench2Action) -> Tbench2Observation:
        return self._result(action, self._jobs.view(_name(action)))

    def _wait(self, action: Tbench2Action) -> Tbench2Observation:
        seconds = min(action.wait_seconds or 0.0, self._config.command_timeout_s)
        return self._result(action, self._jobs.wait(_name(action), seconds))

    def _kill(self, action: Tbench2Action) -> Tbench2Observation:
        return self._result(action, self._jobs.kill(_name(action)))

    def _write_file(self, action: Tbench2Action) -> Tbench2Observation:
        path = shlex.quote(action.file_path)
        content = shlex.quote(action.content)
        script = f'mkdir -p -- "$(dirname -- {path})" && printf %s {content} > {path}'
        return self._result(action, self._running.exec(script, self._config.command_timeout_s))

    def _evaluate(self, action: Tbench2Action) -> Tbench2Observation:
        verdict = self._running.verify()
        if verdict.reward is None:
            error = verdict.error or "no verdict"
            return self._observation("evaluate", output=verdict.output, success=False, error=error)
        info = {"tests_passed": verdict.reward == 1.0, "harness": HARNESS}
        return self._observation(
            "evaluate", output=verdict.output, info=info, reward=verdict.reward, done=True
        )

    def _close(self, action: Tbench2Action) -> Tbench2Observation:
        seen = self._observation("close", done=True)
        self.close()
        return seen

    @property
    def _running(self) -> Sandbox:
        assert self._sandbox is not None
        return self._sandbox

    def _result(self, action: Tbench2Action, result: ExecResult) -> Tbench2Observation:
        info = {
            "exit_code": result.exit_code,
            "timed_out": result.timed_out,
            "seconds": result.seconds,
        }
        success = result.exit_code == 0
        return self._observation(
            action.action_type, output=result.output, success=success, info=info
        )

    def _observation(self, action_type: str, **fields: Any) -> Tbench2Observation:
        task = self._task
        return Tbench2Observation(
            instruction=task.instruction if task else "",
            task_id=task.id if task else "",
            task_path=str(task.path) if task else "",
            action_type=action_type,
            **fields,
        )


_ACTIONS: dict[str, Callable[[TerminalEnvironment, Tbench2Action], Tbench2Observation]] = {
    "exec": TerminalEnvironment._exec,
    "write": TerminalEnvironment._write,
    "view": TerminalEnvironment._view,
    "wait": TerminalEnvironment._wait,
    "kill": TerminalEnvironment._kill,
    "write_file": TerminalEnvironment._write_file,
    "evaluate": TerminalEnvironment._evaluate,
    "close": TerminalEnvironment._close,
}


def _name(action: Tbench2Action) -> str:
    if not action.session_id:
        raise ValueError(f"{action.action_type} needs a session_id here")
    return action.session_id
