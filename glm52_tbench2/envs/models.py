"""Actions and observations, as OpenEnv's tbench2 environment has them.

`info` of an observation carries what the contract has no field for: of `reset` verifier_timeout_sec
and command_timeout_s; of `exec` exit_code, timed_out and seconds; of `evaluate`, when there is a
verdict, tests_passed and harness.
"""

from typing import Any

from pydantic import Field

from .core import Action, Observation, State

HARNESS = "tests/test.sh"
"""`info["harness"]` of a verdict that the task's own tests gave."""


class Tbench2Action(Action):
    """One action on a task's sandbox."""

    action_type: str = "exec"
    """exec, write, view, wait, kill, write_file, evaluate or close."""
    command: str = ""
    """exec: what to run; write: what to send to the session's standard input."""
    session_id: str | None = None
    """Names a command that `exec` started with block=false."""
    block: bool = True
    """exec: wait for the end."""
    wait_seconds: float | None = None
    """wait: how long at most; exec: time limit of the command, within the server's own."""
    file_path: str = ""
    """write_file: where."""
    content: str = ""
    """write_file: what."""


class Tbench2Observation(Observation):
    """What an action gave."""

    instruction: str = ""
    output: str = ""
    success: bool = True
    error: str = ""
    """Why the action itself failed; a command's own failure is no error."""
    task_id: str = ""
    task_path: str = ""
    session_id: str | None = None
    action_type: str = ""
    info: dict[str, Any] = Field(default_factory=dict)


class Tbench2State(State):
    """Where an episode stands."""

    task_id: str = ""
    task_path: str = ""
    session_id: str = ""
    terminal_ready: bool = False
    last_action_type: str = ""
    last_command: str = ""
    last_output: str = ""
