"""Why an episode ended: one table, read by the agent loop, the metrics and the report.

Two rules follow from it. An end the policy caused carries a verdict: the sandbox is verified as
the policy left it, truncated or not, and a wall clock that ran out scores 0. An end that anything
else caused carries none: the sample is replaced, never trained as 0.
"""

from dataclasses import dataclass
from enum import StrEnum


class EndReason(StrEnum):
    """The name of an exit; the value is what step files and metrics hold."""

    task_complete = "task_complete"
    no_command = "no_command"
    max_turns = "max_turns"
    length = "length"
    budget = "budget"
    timeout = "timeout"
    sandbox = "sandbox"
    verifier = "verifier"
    engine = "engine"
    aborted = "aborted"
    stale = "stale"
    driver = "driver"


class Cause(StrEnum):
    """Who made an episode end."""

    policy = "policy"
    sandbox = "sandbox"
    verifier = "verifier"
    engine = "engine"
    driver = "driver"


class Verdict(StrEnum):
    """Where the reward comes from."""

    tests = "tests"
    zero = "zero"
    none = "none"


@dataclass(frozen=True)
class Outcome:
    cause: Cause
    verdict: Verdict
    truncated: bool
    """Cut by a token limit; what the truncated share counts and `overlong` acts on."""
    doc: str


OUTCOMES: dict[EndReason, Outcome] = {
    EndReason.task_complete: Outcome(
        Cause.policy, Verdict.tests, False, "the policy said TASK_COMPLETE"
    ),
    EndReason.no_command: Outcome(
        Cause.policy, Verdict.tests, False, "a turn held neither a command nor TASK_COMPLETE"
    ),
    EndReason.max_turns: Outcome(
        Cause.policy, Verdict.tests, False, "the last turn allowed was used and its command run"
    ),
    EndReason.length: Outcome(
        Cause.policy, Verdict.tests, True, "a turn reached the per-turn cap (max_turn_tokens)"
    ),
    EndReason.budget: Outcome(
        Cause.policy,
        Verdict.tests,
        True,
        "a turn or an observation reached the session budget (max_session_tokens)",
    ),
    EndReason.timeout: Outcome(
        Cause.policy, Verdict.zero, False, "the episode's wall clock ran out (episode_timeout_s)"
    ),
    EndReason.sandbox: Outcome(
        Cause.sandbox, Verdict.none, False, "the sandbox did not start, hung or was lost"
    ),
    EndReason.verifier: Outcome(
        Cause.verifier, Verdict.none, False, "the verifier gave no verdict"
    ),
    EndReason.engine: Outcome(
        Cause.engine, Verdict.none, False, "the engine failed or stopped answering"
    ),
    EndReason.aborted: Outcome(Cause.engine, Verdict.none, False, "the engine aborted the request"),
    EndReason.stale: Outcome(
        Cause.engine, Verdict.none, False, "the engine served weights that the batch may not hold"
    ),
    EndReason.driver: Outcome(
        Cause.driver, Verdict.none, False, "the driver ended while the sample was in flight"
    ),
}


def has_verdict(reason: str) -> bool:
    """Whether samples that end so may be trained on."""
    return OUTCOMES[EndReason(reason)].verdict is not Verdict.none
