"""The table of a task set."""

import io

import pytest
from rich.console import Console

from glm52_tbench2.config.errors import UserError
from glm52_tbench2.tasks.named import full_name, named_tasks
from glm52_tbench2.tasks.sets import load_set
from glm52_tbench2.tasks.show import show


def printed(name: str, terminal: bool = False, width: int = 130) -> str:
    out = io.StringIO()
    show(name, Console(file=out, force_terminal=terminal, width=width))
    return out.getvalue()


def test_plain_lines_when_not_a_terminal() -> None:
    about, *rest = printed("mini/mini8").splitlines()
    lines = [line.split("\t") for line in rest]
    assert [line[0] for line in lines] == ["task", *load_set("mini/mini8").ids]
    assert {len(line) for line in lines} == {8}
    digest = load_set("mini/mini8").sha256[:16]
    assert about == f"# 8 tasks, none in mini/eval20, sha256 {digest}"


def test_a_table_on_a_terminal() -> None:
    text = printed("mini/mini8", terminal=True)
    assert all(task_id in text for task_id in ("mini/mini8", *load_set("mini/mini8").ids))


def test_eighty_columns_hold_every_fact() -> None:
    text = printed("mini/mini8", terminal=True, width=80)
    for fact in ("difficulty", "system-administration", "delete-by-name", "agent s 300"):
        assert fact in text
    assert "…" not in text
    lines = printed("tbench2", terminal=True, width=80).splitlines()
    limits = next(line for line in lines if "build-pov-ray" in line).split()
    assert limits[1] == "medium" and limits[-3:] == ["12000", "12000", "2048"]


def test_tasks_known_without_their_files_can_be_shown() -> None:
    lines = printed("tbench2").splitlines()
    assert len(lines) == 91
    assert "fix-git\teasy\tsoftware-engineering\t\t900\t900\t2048\t10240" in lines


def test_a_suite_or_a_set_can_be_named() -> None:
    assert [full_name(name) for name in ("mini", "train8", "mini/mini8")] == [
        "mini",
        "tbench2/train8",
        "mini/mini8",
    ]
    assert len(named_tasks("mini")) == 89
    assert [task.id for task in named_tasks("mini/eval20")] == list(load_set("mini/eval20").ids)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mini9", "no task set mini9; did you mean mini/"),
        ("mini/mini9", "no task set mini/mini9; did you mean"),
        ("tbench2/train8", "not part of this repository"),
    ],
)
def test_a_name_that_cannot_be_had_gets_one_sentence(name: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        named_tasks(full_name(name))
