"""The driver's side of an environment server: one session, one episode.

Works with this project's server and with OpenEnv's own tbench2 environment. Every call has a time
limit, calls of one session run one after the other, and a session that failed once is never used
again: the client below would reconnect to a new environment without a word, or hand a late answer
to the next question.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from .sandbox import ExecResult, NoCapacity, SandboxError, Verdict

if TYPE_CHECKING:
    from .core import StepResult
    from .models import Tbench2Observation
    from .wire import Tbench2Client

__all__ = ["EnvSession", "ExecResult", "NoCapacity", "SandboxError", "Verdict"]

_MARGIN_S = 20.0
"""Given to a server beyond the time limit it keeps itself, seconds."""
_ANSWER_TIMEOUT_S = 60.0
_VERIFIER_TIMEOUT_S = 900.0
_CLOSE_TIMEOUT_S = 10.0
_COMMAND_BYTES = 4 * 2**20
T = TypeVar("T")


class EnvSession:
    """A session of an environment server. Make one with :meth:`open`, use it for one episode.

    Every method raises SandboxError when the server or its sandbox fails; it is then spent.
    """

    def __init__(self, client: "Tbench2Client", reset_timeout_s: float) -> None:
        self._client = client
        self._reset_timeout_s = reset_timeout_s
        self._lock = asyncio.Lock()
        self._spent: str | None = None
        """Why no more calls are taken."""
        self._verifier_timeout_s = _VERIFIER_TIMEOUT_S
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, url: str, timeout_s: float = 60.0, *, reset_timeout_s: float = 180.0
    ) -> "EnvSession":
        """Connects; while every place is taken, tries again for `timeout_s` seconds.

        `reset_timeout_s`: how long the server may take to make a sandbox.

        Raises NoCapacity when every place stays taken, SandboxError when there is no server.
        """
        from .wire import Tbench2Client  # imports OpenEnv, which takes more than a second

        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        pause_s = 0.02
        while True:
            session = cls(Tbench2Client(url), reset_timeout_s)
            try:
                # A full server accepts the connection, and says so only when it is asked something.
                await session._call(session._client.state, _ANSWER_TIMEOUT_S, "open")
                return session
            except NoCapacity:
                await session.close()
                if loop.time() + pause_s > deadline:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.5)

    async def reset(self, task_id: str) -> str:
        """Starts the task's sandbox; returns its instruction."""
        result = await self._call(
            lambda: self._client.reset(task_id=task_id), self._reset_timeout_s + _MARGIN_S, "reset"
        )
        seen = result.observation
        if seen.error:
            raise self._failed(f"reset: {seen.error}")
        self._verifier_timeout_s = seen.info.get("verifier_timeout_sec") or _VERIFIER_TIMEOUT_S
        return seen.instruction

    async def exec(self, command: str, timeout_s: float) -> ExecResult:
        """Runs a command in the episode's shell; see :meth:`Sandbox.exec`.

        `timeout_s` is the command's own limit, kept by the server within its own.
        """
        if len(command.encode(errors="replace")) > _COMMAND_BYTES:
            raise self._failed(f"exec: a command of more than {_COMMAND_BYTES} bytes")
        result = await self._step(
            timeout_s + _MARGIN_S, action_type="exec", command=command, wait_seconds=timeout_s
        )
        seen = result.observation
        if seen.error:
            raise self._failed(f"exec: {seen.error}")
        info = seen.info
        return ExecResult(
            seen.output,
            info.get("exit_code"),
            bool(info.get("timed_out", False)),
            float(info.get("seconds", 0.0)),
        )

    async def evaluate(self) -> Verdict:
        """The task's own tests' verdict; then the episode is over.

        A reward counts only with the mark of the tests' harness and without an error; what else
        a server may answer is no verdict.
        """
        result = await self._step(self._verifier_timeout_s + _MARGIN_S, action_type="evaluate")
        self._spent = "the episode is over: it has been evaluated"
        return _verdict(result)

    async def close(self) -> None:
        """Ends the session and its sandbox. Does not raise, and may be called twice."""
        self._spent = self._spent or "the session is closed"
        self._discard()
        assert self._closing is not None
        await asyncio.shield(self._closing)

    async def _step(self, timeout_s: float, **action: Any) -> "StepResult[Tbench2Observation]":
        from .models import Tbench2Action

        return await self._call(
            lambda: self._client.step(Tbench2Action(**action)), timeout_s, action["action_type"]
        )

    async def _call(self, start: Callable[[], Awaitable[T]], timeout_s: float, what: str) -> T:
        async with self._lock:
            if self._spent is not None:
                raise SandboxError(f"{what}: {self._spent}")
            try:
                async with asyncio.timeout(timeout_s):
                    return await start()
            except asyncio.CancelledError:
                self._failed(f"{what} was given up")
                raise
            except TimeoutError as error:
                raise self._failed(f"{what}: no answer in {timeout_s:g} s") from error
            except Exception as error:
                kind = NoCapacity if "CAPACITY_REACHED" in str(error) else SandboxError
                text = str(error) or type(error).__name__
                raise self._failed(f"{what}: {text}", kind) from error

    def _failed(self, why: str, kind: type[SandboxError] = SandboxError) -> SandboxError:
        self._spent = f"the session was given up after a failure ({why})"
        self._discard()
        return kind(why)

    def _discard(self) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._disconnect())

    async def _disconnect(self) -> None:
        with suppress(Exception):
            await asyncio.wait_for(self._client.close(), _CLOSE_TIMEOUT_S)


def _verdict(result: "StepResult[Tbench2Observation]") -> Verdict:
    from .models import HARNESS

    seen = result.observation
    if seen.error:
        return Verdict(None, seen.error, seen.output)
    if seen.info.get("harness") != HARNESS:
        return Verdict(None, "the verdict does not come from the task's tests", seen.output)
    if result.reward is None:
        return Verdict(None, "the verdict holds no reward", seen.output)
    return Verdict(float(result.reward), None, seen.output)
