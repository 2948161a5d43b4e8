import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glm52_tbench2.config.errors import UserError
from glm52_tbench2.rollout import episode as module
from glm52_tbench2.rollout.batch import Sample, write_batch
from glm52_tbench2.rollout.episode import Episode, Limits, play
from glm52_tbench2.rollout.outcome import OUTCOMES, Cause

from .fakes import (
    HANG,
    Cut,
    EngineError,
    ExecResult,
    Generation,
    SandboxError,
    ScriptedEngine,
    ScriptedSandbox,
    Slow,
    Verdict,
    bash,
)  # fmt: skip

LIMITS = Limits(
    temperature=0.8,
    max_turn_tokens=40,
    max_session_tokens=400,
    max_turns=4,
    episode_timeout_s=30,
    command_timeout_s=7,
    observation_chars=50,
)
EPISODE = Episode(
    3, 2, 1, "task", seed=lambda turn: 100 + turn, rid="r", oldest_version=0, newest_version=0
)


def run(
    chat, script, sandbox=None, limits=LIMITS, engine=None, episode=EPISODE
) -> tuple[Sample, ScriptedEngine, ScriptedSandbox]:
    engine = engine or ScriptedEngine(chat, script)
    sandbox = sandbox or ScriptedSandbox()
    sample = asyncio.run(play(episode, "sys", limits, chat, engine, sandbox.open))
    return sample, engine, sandbox


def test_an_episode_is_its_prompt_turns_and_observations_in_one_sequence(chat, tokenizer):
    sample, _, sandbox = run(chat, [bash("ls"), "All done: TASK_COMPLETE"])
    assert tokenizer.decode(sample.tokens) == (
        "[gMASK]<sop><|system|>\nsys<|user|>\ndo it<|assistant|>\n"
        "```bash\nls\n```<|user|>\nran ls<|assistant|>\n"
        "All done: TASK_COMPLETE<|user|>"
    )
    assert sandbox.commands == ["ls"]
    assert (sample.end_reason, sample.reward, sample.truncated) == ("task_complete", 1.0, False)
    said = [tokenizer.decode(sample.tokens[t.start : t.end]) for t in sample.turns]
    assert said == ["```bash\nls\n```<|user|>", "All done: TASK_COMPLETE<|user|>"]
    generated = np.concatenate([np.arange(t.start, t.end) for t in sample.turns])
    assert np.flatnonzero(sample.loss_mask).tolist() == generated.tolist()
    assert set(sample.rollout_logprobs[sample.loss_mask]) == {np.float32(-0.5)}
    assert not sample.rollout_logprobs[~sample.loss_mask].any()
    assert set(sample.weight_versions[~sample.loss_mask]) == {-1}
    assert sample.turns[0].command == "ls" and sample.turns[0].observation == "ran ls"


def test_the_engine_is_asked_with_the_very_ids_it_gave(chat):
    sample, engine, _ = run(chat, [bash("ls"), bash("pwd"), "TASK_COMPLETE"])
    for request, turn in zip(engine.requests, sample.turns, strict=True):
        assert request["input_ids"] == sample.tokens[: turn.start].tolist()
    assert [r["seed"] for r in engine.requests] == [100, 101, 102]
    assert len({r["rid"] for r in engine.requests}) == 3


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (["TASK_COMPLETE"], "task_complete"),
        (["I give up"], "no_command"),
        (["```bash\nls"], "no_command"),
        ([bash("ls")] * 4, "max_turns"),
        ([bash("ls"), Cut()], "length"),
    ],
)
def test_ends_of_the_policys_making_are_verified(chat, script, reason):
    for verdict in (0.0, 1.0):
        sample, _, sandbox = run(chat, script, ScriptedSandbox(verdict=verdict))
        assert (sample.end_reason, sample.reward) == (reason, verdict)
        assert sandbox.evaluations == 1


def test_the_last_turns_command_is_run(chat):
    sample, engine, sandbox = run(chat, [bash(c) for c in "abcd"])
    assert sandbox.commands == list("abcd")
    assert len(engine.requests) == 4
    assert len(sample.tokens) == sample.turns[-1].end, "what nobody will read is not appended"


def test_a_truncated_turn_ends_the_episode_and_is_not_obeyed(chat):
    sample, engine, sandbox = run(chat, [Cut(bash("rm x") + "\n"), bash("ls")])
    assert (sample.end_reason, sample.truncated) == ("length", True)
    assert sandbox.commands == [] and len(engine.requests) == 1
    assert sample.num_generated == LIMITS.max_turn_tokens


def test_no_more_is_asked_of_the_engine_than_the_budget_leaves(chat):
    prompt = len(chat.prompt("sys", "do it"))
    limits = replace(LIMITS, max_session_tokens=prompt + 50, max_turn_tokens=40)
    sample, engine, _ = run(chat, [bash("ls"), Cut()], ScriptedSandbox(lambda c: "o"), limits)
    left = limits.max_session_tokens - len(engine.requests[1]["input_ids"])
    assert 0 < left < 40
    assert [r["max_new_tokens"] for r in engine.requests] == [40, left]
    assert (sample.end_reason, sample.truncated) == ("budget", True)
    assert len(sample.tokens) == limits.max_session_tokens


@pytest.mark.parametrize("spare", [0, 1])
def test_an_observation_that_leaves_no_room_ends_the_episode_before_any_generation(chat, spare):
    prompt, turn = len(chat.prompt("sys", "do it")), len(chat._plain(bash("ls"))) + 1
    answer = len(chat.observation("out", -1)) - 1
    limits = replace(LIMITS, max_session_tokens=prompt + turn + answer + spare)
    sample, engine, sandbox = run(
        chat, [bash("ls"), Cut()], ScriptedSandbox(lambda c: "out"), limits
    )
    assert sample.end_reason == "budget" and sandbox.evaluations == 1
    assert len(engine.requests) == 1 + spare
    assert sample.turns[0].observation == "out"
    assert len(sample.tokens) == prompt + turn + (answer + 1 if spare else 0)


def test_a_prompt_that_fills_the_budget_is_the_users_to_mend(chat):
    with pytest.raises(UserError, match=r"task task has .* raise rollout\.max_session_tokens"):
        run(chat, [], limits=replace(LIMITS, max_session_tokens=10))


def test_the_wall_clock_scores_zero_without_a_verdict(chat):
    sandbox = ScriptedSandbox(lambda c: HANG)
    sample, _, _ = run(chat, [bash("sleep 9")], sandbox, replace(LIMITS, episode_timeout_s=0.2))
    assert (sample.end_reason, sample.reward) == ("timeout", 0.0)
    assert sandbox.evaluations == 0 and sandbox.closed == 1


@pytest.mark.parametrize("max_turns", [1, 2])
def test_a_command_gets_what_is_left_of_the_wall_clock(chat, max_turns):
    given = []

    class Told(ScriptedSandbox):
        async def exec(self, command, timeout_s):
            given.append(timeout_s)
            return await super().exec(command, timeout_s)

    limits = replace(LIMITS, episode_timeout_s=0.4, max_turns=max_turns)
    sample, _, _ = run(chat, [bash("sleep 9"), "x"], Told(lambda c: HANG), limits)
    assert sample.end_reason == "timeout" and 0 < given[0] <= 0.4


def test_a_sandbox_that_hangs_until_the_wall_clock_is_to_blame_for_it(chat):
    """Its client gives a sandbox some time beyond the command's limit, then calls it lost."""

    class Hung(ScriptedSandbox):
        async def exec(self, command, timeout_s):
            await asyncio.sleep(timeout_s + 0.3)
            raise SandboxError("exec: no answer")

    sample, _, _ = run(chat, [bash("ls")], Hung(), replace(LIMITS, episode_timeout_s=0.2))
    assert sample.end_reason == "sandbox" and math.isnan(sample.reward)


def test_a_slow_turn_is_the_policys_and_its_request_is_aborted(chat):
    limits = replace(LIMITS, episode_timeout_s=0.2)
    sample, engine, _ = run(chat, [bash("ls"), HANG], limits=limits)
    assert (sample.end_reason, sample.reward) == ("timeout", 0.0)
    assert engine.aborted == [engine.requests[1]["rid"]]
    assert len(sample.turns) == 1
    assert sample.num_generated == sample.turns[0].end - sample.turns[0].start
    assert sample.discarded_tokens == 3


@pytest.mark.parametrize("script", [[bash("ls"), HANG], [HANG]])
def test_an_engine_that_answers_and_does_not_generate_is_to_blame_for_the_wall_clock(
    chat, monkeypatch, script
):
    monkeypatch.setattr(module, "_ABORT_S", 0.1)
    engine = ScriptedEngine(chat, script, hung=True)
    limits = replace(LIMITS, episode_timeout_s=0.2)
    sample, _, _ = run(chat, script, limits=limits, engine=engine)
    assert sample.end_reason == "engine" and math.isnan(sample.reward)
    assert engine.aborted and "was not ended in 0.1 s" in sample.error
    assert all(task.cancelled() for task in list(engine.answering.values())[-1:])


def test_no_turn_at_all_within_the_wall_clock_is_not_the_policys_doing(chat):
    sample, _, _ = run(chat, [HANG], limits=replace(LIMITS, episode_timeout_s=0.2))
    assert sample.end_reason == "engine" and "not one turn" in sample.error


def test_a_killed_command_is_told_to_the_policy(chat):
    killed = ExecResult(output="partial\n", exit_code=None, timed_out=True, seconds=7.0)
    sample, _, _ = run(chat, [bash("ls"), "TASK_COMPLETE"], ScriptedSandbox(lambda c: killed))
    assert sample.turns[0].observation == "partial\n(killed after 7 s)"


BAD = {
    "engine error": (lambda: [EngineError("down")], {}, "engine"),
    "aborted": (lambda: [Generation([1], [-1.0], "abort", [0], 0, 0.0)], {}, "aborted"),
    "no tokens": (lambda: [Generation([], [], "stop", [], 0, 0.0)], {}, "engine"),
    "log-prob lost": (lambda: [Generation([1, 2], [-1.0], "stop", [0, 0], 0, 0.0)], {}, "engine"),
    "log-prob nan": (lambda: [Generation([1], [math.nan], "stop", [0], 0, 0.0)], {}, "engine"),
    "other weights": (lambda: [Generation([1], [-1.0], "stop", [7], 0, 0.0)], {}, "stale"),
    "mixed weights": (lambda: [Generation([1, 2], [-1, -1], "stop", [0, 1], 0, 0.0)], {}, "stale"),
    "no sandbox": (lambda: [], {"instruction": SandboxError("capacity")}, "sandbox"),
    "sandbox lost": (lambda: [bash("ls")], {"outputs": lambda c: SandboxError("gone")}, "sandbox"),
    "lost verifying": (lambda: ["x"], {"verdict": SandboxError("gone")}, "sandbox"),
    "no verdict": (lambda: ["x"], {"verdict": Verdict(None, "tests did not run")}, "verifier"),
    "reward beside an error": (lambda: ["x"], {"verdict": Verdict(0.0, "no marker")}, "verifier"),
    "reward nan": (lambda: ["x"], {"verdict": Verdict(math.nan, None)}, "verifier"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_failures_of_the_infrastructure_carry_no_verdict(chat, case):
    script, sandbox, reason = BAD[case]
    sandbox = ScriptedSandbox(**sandbox)
    sample, engine, _ = run(chat, script(), sandbox)
    assert sample.end_reason == reason and math.isnan(sample.reward) and sample.error
    assert sandbox.closed == 1
    assert len(engine.requests) <= 1, "generation stops at once"


class HurriedLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when nothing else is to be done."""

    _ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self._ahead_s

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self._ahead_s += max(0.0, self._scheduled[0].when() - self.time())
        super()._run_once()


def test_the_environments_limits_alone_bound_a_start_and_a_verdict(chat):
    """There are tasks whose tests may take 12000 s."""
    sandbox = ScriptedSandbox(instruction=Slow(7000.0, "do it"), verdict=Slow(12000.0, 1.0))
    engine = ScriptedEngine(chat, ["x"])
    with asyncio.Runner(loop_factory=HurriedLoop) as runner:
        sample = runner.run(play(EPISODE, "sys", LIMITS, chat, engine, sandbox.open))
    assert (sample.end_reason, sample.reward) == ("no_command", 1.0)


def test_starting_and_verifying_do_not_count_against_the_policys_wall_clock(chat):
    sandbox = ScriptedSandbox(instruction=Slow(0.3, "do it"), verdict=Slow(0.3, 1.0))
    sample, _, _ = run(chat, ["x"], sandbox, replace(LIMITS, episode_timeout_s=0.4))
    assert sample.end_reason == "no_command" and sample.reward == 1.0


turns = st.one_of(
    st.sampled_from(["TASK_COMPLETE", "hm", Cut()]),
    st.text("ab\n`", max_size=30).map(bash),
    st.just(bash("ls")),
)


@settings(max_examples=80, deadline=None)
@given(
    script=st.lists(turns, min_size=6, max_size=6),
    output=st.text(max_size=60),
    session=st.integers(60, 300),
    turn_cap=st.integers(1, 60),
    max_turns=st.integers(1, 6),
)
def test_whatever_is_said_no_limit_is_passed(
    tmp_path_factory, chat, script, output, session, turn_cap, max_turns
):
    limits = replace(
        LIMITS, max_session_tokens=session, max_turn_tokens=turn_cap, max_turns=max_turns
    )
    sample, engine, sandbox = run(chat, script, ScriptedSandbox(lambda c: output), limits)
    assert OUTCOMES[sample.end_reason].cause is Cause.policy
    assert len(sample.tokens) <= session
    assert len(sample.turns) == len(engine.requests) <= max_turns
    assert all(turn.end - turn.start <= turn_cap for turn in sample.turns)
    assert all(len(turn.observation) <= limits.observation_chars for turn in sample.turns)
    ran = [turn.command for turn in sample.turns if turn.command is not None]
    assert ran == sandbox.commands
    truncated = [turn.finish == "length" for turn in sample.turns]
    assert not any(truncated[:-1])
    assert sample.truncated == (sample.end_reason in ("length", "budget"))
    if truncated[-1]:
        assert sample.turns[-1].command is None
    for request, turn in zip(engine.requests, sample.turns, strict=True):
        assert request["input_ids"] == sample.tokens[: turn.start].tolist()
    write_batch(tmp_path_factory.getbasetemp() / "b.parquet", [sample], "id", 3)
