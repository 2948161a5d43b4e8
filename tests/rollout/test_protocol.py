import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm52_tbench2.rollout.protocol import command_of, is_complete, observation_of


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("```bash\nls\n```", "ls"),
        ("First look.\n```bash\nls -la\n```\nThen more.", "ls -la"),
        ("```bash\ncd /app\nls\n```", "cd /app\nls"),
        ("```bash\r\nls\r\n```\r\n", "ls"),
        ("```bash  \nls\n```  ", "ls"),
        ("```bash\necho '```'\n```", "echo '```'"),
        ("```bash\ncat <<E\na\n\nE\n```", "cat <<E\na\n\nE"),
        ("```bash\nls\n```\n```bash\npwd\n```", "ls"),
        ("TASK_COMPLETE\n```bash\nls\n```", "ls"),
        ("```bash\nls", None),
        ("```bash\nls```", None),
        ("```bash ls```", None),
        ("```\nls\n```", None),
        ("```python\nls\n```", None),
        ("```bash\n\n```", None),
        ("see ```bash\nls\n```", None),
        ("", None),
        ("<think>\n```bash\nrm\n```\n</think>\n```bash\nls\n```", "ls"),
        ("<think>\n```bash\nrm\n```\n</think>\nTASK_COMPLETE", None),
    ],
)
def test_command_of_a_turn(text, command):
    assert command_of(text) == command


def test_completion_is_what_is_said_not_what_is_thought():
    assert is_complete("Done.\nTASK_COMPLETE")
    assert not is_complete("<think>say TASK_COMPLETE later</think>ok")
    assert not is_complete("task complete")


@pytest.mark.parametrize(
    ("output", "limit", "timed_out", "shown"),
    [
        ("a\nb\n", 10, None, "a\nb"),
        ("", 20, None, "(no output)"),
        ("\n \n", 20, None, "(no output)"),
        ("  a", 20, None, "  a"),
        ("abcdef", 3, None, "abc"),
        ("abc", 40, 60.0, "abc\n(killed after 60 s)"),
        ("", 40, 60.0, "(killed after 60 s)"),
        ("abcdef", 23, 2.5, "ab\n(killed after 2.5 s)"),
    ],
)
def test_observation(output, limit, timed_out, shown):
    assert observation_of(output, limit, timed_out) == shown


@given(st.text(), st.integers(1, 50), st.none() | st.just(3.0))
def test_an_observation_is_never_empty_nor_longer_than_its_limit(output, limit, timed_out):
    assert 0 < len(observation_of(output, limit, timed_out)) <= max(limit, len("(no output)"))
