"""Scripted stand-ins for an engine and a sandbox, in process, for tests of the agent loop.

They follow a script and hold nothing else; the real ones are tested in their own rooms and in
tests/integration.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from glm52_tbench2.engines.client import EngineError, Generation
from glm52_tbench2.envs.client import ExecResult, SandboxError, Verdict
from glm52_tbench2.rollout.chat import ChatLayout


def bash(command: str) -> str:
    """A turn that holds one command."""
    return f"```bash\n{command}\n```"


@dataclass
class Cut:
    """A turn that fills the whole of what it may generate."""

    text: str = ""


@dataclass
class Slow:
    """A reply that takes a while."""

    seconds: float
    reply: Any = "TASK_COMPLETE"


HANG = Slow(1e6)


@dataclass
class ScriptedEngine:
    """Answers the n-th request of an episode with the n-th reply of its script.

    A reply is a turn's text, a Cut, a Slow, a Generation to return as it is, or an error to raise.
    """

    chat: ChatLayout
    script: Sequence[Any] = ()
    version: int = 0
    hung: bool = False
    """Whether an abort is taken, as ever, and nothing comes of it."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    answering: dict[str, "asyncio.Task[Generation]"] = field(default_factory=dict)

    async def generate(self, input_ids: list[int], **asked: Any) -> Generation:
        self.requests.append({"input_ids": input_ids, **asked})
        rid = asked["rid"]
        reply = self.script[int(rid.rpartition("-")[2])]
        self.answering[rid] = asyncio.create_task(self.answer(reply, asked["max_new_tokens"]))
        try:
            return await self.answering[rid]
        except asyncio.CancelledError:
            if self.hung or rid not in self.aborted:
                raise
            return Generation([1] * 3, [-0.5] * 3, "abort", [self.version] * 3, 0, 0.0)

    async def answer(self, reply: Any, room: int) -> Generation:
        if isinstance(reply, Slow):
            await asyncio.sleep(reply.seconds)
            reply = reply.reply
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, Generation):
            return reply
        cut = isinstance(reply, Cut)
        ids = self.chat._plain(reply.text if cut else reply)
        if cut:
            ids = (ids + self.chat._plain("x") * room)[:room]
        else:
            ids = [*ids, self.user][:room]
            cut = ids[-1] != self.user
        return Generation(
            output_ids=ids,
            logprobs=[-0.5] * len(ids),
            finish="length" if cut else "stop",
            versions=[self.version] * len(ids),
            cached_tokens=1,
            seconds=0.0,
        )

    @property
    def user(self) -> int:
        return self.chat._special["<|user|>"]

    async def abort(self, rid: str) -> None:
        self.aborted.append(rid)
        if not self.hung and rid in self.answering:
            self.answering[rid].cancel()


@dataclass
class ScriptedSandbox:
    """Answers commands from a function, and the verdict from a value or a function.

    A command that is Slow is killed at its time limit, as a real sandbox does.
    """

    outputs: Callable[[str], Any] = lambda command: f"ran {command}"
    verdict: Any = 1.0
    instruction: Any = "do it"
    commands: list[str] = field(default_factory=list)
    evaluations: int = 0
    closed: int = 0

    async def open(self) -> "ScriptedSandbox":
        return self

    async def reset(self, task_id: str) -> str:
        return await self._reply(self.instruction)

    async def exec(self, command: str, timeout_s: float) -> ExecResult:
        self.commands.append(command)
        reply = self.outputs(command)
        if isinstance(reply, Slow) and reply.seconds > timeout_s:  # killed by the sandbox itself
            await asyncio.sleep(timeout_s)
            reply = ExecResult(output="", exit_code=None, timed_out=True, seconds=timeout_s)
        reply = await self._reply(reply)
        if isinstance(reply, ExecResult):
            return reply
        return ExecResult(output=reply, exit_code=0, timed_out=False, seconds=0.0)

    async def evaluate(self) -> Verdict:
        self.evaluations += 1
        reply = await self._reply(self.verdict() if callable(self.verdict) else self.verdict)
        return reply if isinstance(reply, Verdict) else Verdict(reward=reply, error=None)

    async def close(self) -> None:
        self.closed += 1

    async def _reply(self, reply: Any) -> Any:
        if isinstance(reply, Slow):
            await asyncio.sleep(reply.seconds)
            reply = reply.reply
        if isinstance(reply, Exception):
            raise reply
        return reply


__all__ = [
    "HANG", "Cut", "EngineError", "ExecResult", "Generation", "SandboxError", "ScriptedEngine",
    "ScriptedSandbox", "Slow", "Verdict", "bash",
]  # fmt: skip
