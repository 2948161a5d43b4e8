"""What a turn says and what it is answered: the agent's protocol, as text.

A turn holds one fenced ``bash`` block, which is one command; ``TASK_COMPLETE`` without a block
ends the episode; a turn with neither ends it too. The answer is the command's output.
"""

import re

COMPLETE = "TASK_COMPLETE"
NO_OUTPUT = "(no output)"
# The fences stand alone on their lines: a command may itself hold backticks.
_BLOCK = re.compile(r"^```bash[ \t]*\r?\n(.*?)^```[ \t]*\r?$", re.DOTALL | re.MULTILINE)


def reply_of(text: str) -> str:
    """The part of a turn that acts: what follows the reasoning block, where there is one."""
    return text.rpartition("</think>")[2]


def command_of(text: str) -> str | None:
    """The command of a turn: its first closed bash block; None without one, or when it is blank."""
    found = _BLOCK.search(reply_of(text))
    if found is None or not found[1].strip():
        return None
    return found[1].rstrip("\r\n")


def is_complete(text: str) -> bool:
    """Whether a turn without a command declares the task done."""
    return COMPLETE in reply_of(text)


def observation_of(output: str, limit: int, timed_out_s: float | None = None) -> str:
    """What the policy sees of a command's output: at most `limit` characters.

    `timed_out_s` is the limit a killed command ran into, in seconds; its last line then says so,
    within the same number of characters.
    """
    text = output.rstrip()
    if timed_out_s is not None:
        note = f"(killed after {timed_out_s:g} s)"
        return f"{text[: max(0, limit - len(note) - 1)]}\n{note}".lstrip("\n")[:limit]
    return text[:limit] or NO_OUTPUT
