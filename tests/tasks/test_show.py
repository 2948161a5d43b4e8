"""The table of a task set."""

import io

from rich.console import Console

from glm52_tbench2.config.paths import DATA
from glm52_tbench2.tasks.sets import load_set
from glm52_tbench2.tasks.show import show
from glm52_tbench2.tasks.suite import load_suite, select
from glm52_tbench2.tasks.tbench2 import known_tasks


def printed(terminal: bool) -> str:
    tasks = select(load_suite(DATA / "mini" / "tasks"), load_set("mini/mini8").ids)
    out = io.StringIO()
    show(tasks, "mini8", Console(file=out, force_terminal=terminal, width=130))
    return out.getvalue()


def test_plain_lines_when_not_a_terminal() -> None:
    lines = [line.split("\t") for line in printed(terminal=False).splitlines()]
    assert [line[0] for line in lines] == ["task", *load_set("mini/mini8").ids]
    assert {len(line) for line in lines} == {8}


def test_a_table_on_a_terminal() -> None:
    text = printed(terminal=True)
    assert "mini8" in text
    assert all(task_id in text for task_id in load_set("mini/mini8").ids)


def test_tasks_known_without_their_files_can_be_shown() -> None:
    out = io.StringIO()
    show(list(known_tasks().values()), "tbench2", Console(file=out, width=130))
    lines = out.getvalue().splitlines()
    assert len(lines) == 90
    assert "fix-git\teasy\tsoftware-engineering\t\t900\t900\t2048\t10240" in lines
