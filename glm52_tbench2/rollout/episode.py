"""One episode: the policy and a sandbox in turn, until a named end.

Tokens in, tokens out: what the engine returned is the record, and the conversation grows by the ids
of each observation. Generation stops the moment its tokens could no longer be trained.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import numpy as np

from ..config.errors import UserError
from ..config.schema import RunConfig
from ..engines.client import EngineError, Generation, Message
from ..envs.client import ExecResult, SandboxError
from ..envs.client import Verdict as TestVerdict
from .batch import Sample, Turn
from .chat import ChatLayout
from .outcome import OUTCOMES, Cause, EndReason, Verdict
from .protocol import command_of, is_complete, observation_of

_ABORT_S = 30.0
"""On a live engine a request that is aborted ends within this, seconds."""


class Engine(Protocol):
    """What an episode needs of :class:`glm52_tbench2.engines.client.EngineClient`."""

    async def generate(
        self,
        input_ids: list[int],
        *,
        max_new_tokens: int,
        temperature: float,
        stop_token_ids: list[int],
        seed: int,
        rid: str,
        messages: Sequence[Message],
    ) -> Generation: ...

    async def abort(self, rid: str) -> None: ...


class Sandbox(Protocol):
    """What an episode needs of :class:`glm52_tbench2.envs.client.EnvSession`.

    Each call has a time limit of its own, and raises SandboxError at its end.
    """

    async def reset(self, task_id: str) -> str: ...

    async def exec(self, command: str, timeout_s: float) -> ExecResult: ...

    async def evaluate(self) -> TestVerdict: ...

    async def close(self) -> None: ...


@dataclass(frozen=True)
class Limits:
    """What one episode may use."""

    temperature: float
    max_turn_tokens: int
    max_session_tokens: int
    max_turns: int
    episode_timeout_s: float
    command_timeout_s: float
    observation_chars: int

    @classmethod
    def of(cls, config: RunConfig, temperature: float) -> "Limits":
        """The limits a run's config sets."""
        rollout = config.rollout
        return cls(
            temperature=temperature,
            max_turn_tokens=rollout.max_turn_tokens,
            max_session_tokens=rollout.max_session_tokens,
            max_turns=rollout.max_turns,
            episode_timeout_s=rollout.episode_timeout_s,
            command_timeout_s=config.sandbox.command_timeout_s,
            observation_chars=rollout.observation_chars,
        )


@dataclass(frozen=True)
class Episode:
    """What to play, and under which names and seeds."""

    step: int
    group: int
    index: int
    task_id: str
    seed: Callable[[int], int]
    """Sampling seed of each turn."""
    rid: str
    """Prefix of the engine's request ids; unique among all requests of a run's lifetime."""
    oldest_version: int
    """Oldest weight version its tokens may come from."""
    newest_version: int | None
    """Newest one; None: any after the oldest."""

    @property
    def sample_id(self) -> str:
        return f"{self.step:06d}-{self.group}-{self.index}"


async def play(
    episode: Episode,
    system_prompt: str,
    limits: Limits,
    chat: ChatLayout,
    engine: Engine,
    open_sandbox: Callable[[], Awaitable[Sandbox]],
) -> Sample:
    """Plays one episode and takes its verdict.

    Failures of engine and sandbox do not raise: they are the sample's end reason, and its reward is
    then NaN. Raises UserError when a task's prompt alone fills the session budget.

    Its wall clock, `episode_timeout_s`, runs from the first turn. Starting the sandbox and the
    verdict keep the limits of the environment: how long they take is not the policy's doing. Only
    a request that the engine itself ends is the policy's when the wall clock runs out.
    """
    return await _Play(episode, system_prompt, limits, chat, engine).run(open_sandbox)


class _End(Exception):
    """Ends an episode from wherever it is."""

    def __init__(self, reason: EndReason, error: str) -> None:
        super().__init__(error)
        self.reason = reason
        self.error = error


class _Play:
    def __init__(
        self,
        episode: Episode,
        system_prompt: str,
        limits: Limits,
        chat: ChatLayout,
        engine: Engine,
    ) -> None:
        self.episode, self.limits, self.chat, self.engine = episode, limits, chat, engine
        self.system_prompt = system_prompt
        self.tokens: list[int] = []
        self.messages: list[Message] = []
        """The same as text, for an endpoint that takes no token ids."""
        self.counted_tokens: int | None = None
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.turns: list[Turn] = []
        self.prompt_tokens = 0
        self.discarded_tokens = 0
        self.start_s = self.verify_s = 0.0
        self.ends_at = math.inf
        """When the wall clock of the turns runs out, in the event loop's time."""

    async def run(self, open_sandbox: Callable[[], Awaitable[Sandbox]]) -> Sample:
        started = perf_counter()
        sandbox: Sandbox | None = None
        reward, error = math.nan, None
        try:
            sandbox = await open_sandbox()
            instruction = await sandbox.reset(self.episode.task_id)
            self.start_s = perf_counter() - started
            reason = await self._converse(sandbox, instruction)
            if OUTCOMES[reason].verdict is Verdict.zero:
                reward = 0.0
            else:
                reward = await self._verify(sandbox, reason)
        except _End as end:
            reason, error = end.reason, end.error
        except SandboxError as failure:
            reason, error = EndReason.sandbox, str(failure)
        except EngineError as failure:
            reason, error = EndReason.engine, str(failure)
        total_s = perf_counter() - started
        # Not when cancelled: the driver is ending then, and its sessions end with its connections.
        if sandbox is not None:
            await sandbox.close()
        return self._sample(reason, reward, error, total_s)

    async def _converse(self, sandbox: Sandbox, instruction: str) -> EndReason:
        """Turns until the policy's end, within the wall clock."""
        limits, now = self.limits, asyncio.get_running_loop().time
        self.ends_at = now() + limits.episode_timeout_s
        self._append(self.chat.prompt(self.system_prompt, instruction))
        self._say("system", self.system_prompt)
        self._say("user", instruction)
        self.prompt_tokens = len(self.tokens)
        if self.prompt_tokens >= limits.max_session_tokens:
            raise UserError(
                f"The prompt of task {self.episode.task_id} has {self.prompt_tokens} tokens and "
                f"leaves none to generate; raise rollout.max_session_tokens "
                f"({limits.max_session_tokens})."
            )
        for number in range(limits.max_turns):
            cap = min(limits.max_turn_tokens, limits.max_session_tokens - len(self.tokens))
            turn = await self._generate(number, cap)
            if turn is None:
                return EndReason.timeout
            if turn.finish == "length":
                return EndReason.length if cap == limits.max_turn_tokens else EndReason.budget
            text = self.chat.text(self.tokens[turn.start : turn.end])
            self._say("assistant", text)
            command = command_of(text)
            if command is None:
                return EndReason.task_complete if is_complete(text) else EndReason.no_command
            await self._execute(sandbox, turn, command)
            if now() >= self.ends_at:
                return EndReason.timeout
            if number + 1 == limits.max_turns:
                break
            answer = self.chat.observation(turn.observation, self.tokens[-1])
            if len(self.tokens) + len(answer) >= limits.max_session_tokens:
                return EndReason.budget
            self._append(answer)
            self._say("user", turn.observation)
        return EndReason.max_turns

    async def _generate(self, number: int, cap: int) -> Turn | None:
        """One turn of the policy; None: the wall clock ran out, on the policy's account."""
        began = perf_counter()
        rid = f"{self.episode.rid}-{number}"
        asked = asyncio.create_task(
            self.engine.generate(
                list(self.tokens),
                max_new_tokens=cap,
                temperature=self.limits.temperature,
                stop_token_ids=self.chat.stop_token_ids,
                seed=self.episode.seed(number),
                rid=rid,
                messages=list(self.messages),
            )
        )
        # Looked at in any case: an error that nobody sees is reported as a fault of ours.
        asked.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        try:
            left = self.ends_at - asyncio.get_running_loop().time()
            await asyncio.wait({asked}, timeout=left)
            if not asked.done():
                await self._give_up(rid, asked)
                return None
        finally:
            asked.cancel()
        out = asked.result()
        start = len(self.tokens)
        self.discarded_tokens = len(out.output_ids)  # until they are taken
        if out.finish == "abort":
            raise _End(EndReason.aborted, "the engine aborted the request")
        if not 0 < len(out.output_ids) == len(out.logprobs) == len(out.versions):
            raise _End(
                EndReason.engine,
                f"the engine returned {len(out.output_ids)} tokens, {len(out.logprobs)} log-probs "
                f"and {len(out.versions)} versions",
            )
        if not all(map(math.isfinite, out.logprobs)):
            raise _End(EndReason.engine, "the engine returned a log-prob that is not finite")
        if out.counted_tokens is not None:
            self.counted_tokens = (self.counted_tokens or 0) + out.counted_tokens
        self.discarded_tokens = 0
        self.tokens += out.output_ids
        self.logprobs += out.logprobs
        self.versions += out.versions
        turn = Turn(
            start=start,
            end=len(self.tokens),
            finish=out.finish,
            generate_s=perf_counter() - began,
            cached_tokens=out.cached_tokens,
        )
        self.turns.append(turn)
        oldest, newest = self.episode.oldest_version, self.episode.newest_version
        found = sorted(set(out.versions))
        if found[0] < oldest or (newest is not None and found[-1] > newest):
            allowed = str(oldest) if newest == oldest else f"{oldest} or later"
            raise _End(EndReason.stale, f"tokens of weight versions {found}, not {allowed}")
        return turn

    async def _execute(self, sandbox: Sandbox, turn: Turn, command: str) -> None:
        """Runs a command, at most as long as the wall clock says.

        The sandbox itself ends the command: one that does not answer by then is lost, and not
        taken for a policy that was slow.
        """
        left = self.ends_at - asyncio.get_running_loop().time()
        limit = min(self.limits.command_timeout_s, max(left, 1e-3))
        turn.command = command
        began = perf_counter()
        try:
            result = await sandbox.exec(command, limit)
        finally:
            turn.exec_s = perf_counter() - began
        turn.exit_code = result.exit_code
        turn.observation = observation_of(
            result.output, self.limits.observation_chars, limit if result.timed_out else None
        )

    async def _give_up(self, rid: str, asked: "asyncio.Task[Generation]") -> None:
        """Ends a generation. Raises _End when the wall clock ran out on the engine's account.

        A server may answer while nothing in it generates: what proves that the time was the
        policy's is that the request itself comes to an end.
        """
        try:
            await self.engine.abort(rid)
            async with asyncio.timeout(_ABORT_S):
                out = await asked
        except (EngineError, TimeoutError) as failure:
            silent = f"a request was not ended in {_ABORT_S:g} s"
            raise _End(
                EndReason.engine, f"the engine stopped generating: {str(failure) or silent}"
            ) from None
        self.discarded_tokens = len(out.output_ids)
        if not self.turns:
            limit = self.limits.episode_timeout_s
            raise _End(EndReason.engine, f"not one turn was generated in {limit:g} s")

    async def _verify(self, sandbox: Sandbox, reason: EndReason) -> float:
        began = perf_counter()
        try:
            verdict = await sandbox.evaluate()
        finally:
            self.verify_s = perf_counter() - began
        if verdict.error or verdict.reward is None or not math.isfinite(verdict.reward):
            raise _End(EndReason.verifier, f"{verdict.error or 'no reward'} (after {reason})")
        return float(verdict.reward)

    def _say(self, role: str, content: str) -> None:
        self.messages.append({"role": role, "content": content})

    def _append(self, ids: list[int]) -> None:
        self.tokens += ids
        self.logprobs += [0.0] * len(ids)
        self.versions += [-1] * len(ids)

    def _sample(
        self, reason: EndReason, reward: float, error: str | None, total_s: float
    ) -> Sample:
        versions = np.asarray(self.versions, dtype=np.int32)
        outcome = OUTCOMES[reason]
        return Sample(
            sample_id=self.episode.sample_id,
            step=self.episode.step,
            group=self.episode.group,
            index=self.episode.index,
            task_id=self.episode.task_id,
            end_reason=reason.value,
            reward=reward if outcome.cause is Cause.policy else math.nan,
            truncated=outcome.truncated,
            tokens=np.asarray(self.tokens, dtype=np.int32),
            loss_mask=versions >= 0,
            rollout_logprobs=np.asarray(self.logprobs, dtype=np.float32),
            weight_versions=versions,
            turns=self.turns,
            prompt_tokens=self.prompt_tokens,
            generate_s=sum(turn.generate_s for turn in self.turns),
            sandbox_s=self.start_s + sum(turn.exec_s for turn in self.turns),
            verify_s=self.verify_s,
            total_s=total_s,
            error=error,
            counted_tokens=self.counted_tokens,
            discarded_tokens=self.discarded_tokens,
        )
