"""`glm52 tasks build`: prompt rows for other training tools."""

import json
from pathlib import Path

import pytest

from glm52_tbench2.cli import main
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.tasks.rows import write_rows
from glm52_tbench2.tasks.sets import TaskSet, load_set
from glm52_tbench2.tasks.tbench2 import known_tasks

TASK_TOML = "[agent]\ntimeout_sec = 9\n[verifier]\ntimeout_sec = 9\n[environment]\n"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Terminal-Bench-2's tasks as folders, with words of our own in them."""
    folder = tmp_path_factory.mktemp("checkout")
    for task_id in known_tasks():
        files = {
            "task.toml": TASK_TOML + "memory_mb = 1\nstorage_mb = 1\n",
            "instruction.md": f"Do {task_id}.\n",
            "environment/Dockerfile": "FROM scratch\n",
            "solution/solve.sh": "",
            "tests/test.sh": "",
        }
        for name, text in files.items():
            path = folder / task_id / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return folder


def build(set_name: str, tasks_dir: Path, out: Path) -> int:
    where = ["--tasks-dir", str(tasks_dir), "--out", str(out)]
    return main(["tasks", "build", "--set", set_name, *where])


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_set_and_its_held_out_tasks_are_written(checkout, tmp_path, capsys):
    assert build("train69", checkout, tmp_path) == build("train8", checkout, tmp_path) == 0
    ids = {
        "tbench2_train69.jsonl": load_set("tbench2/train69").ids,
        "tbench2_train8.jsonl": load_set("tbench2/train8").ids,
        "tbench2_eval.jsonl": load_set("tbench2/eval20").ids,
    }
    assert {path.name for path in tmp_path.iterdir()} == ids.keys()
    for name, expected in ids.items():
        found = rows(tmp_path / name)
        assert [row["metadata"]["task_id"] for row in found] == list(expected)
        assert {row["prompt"][0]["role"] for row in found} == {"system"}
        assert "one command a turn" in found[0]["prompt"][0]["content"]
    assert {Path(line).name for line in capsys.readouterr().out.split()} == ids.keys()
    assert "Do " not in (tmp_path / "tbench2_train69.jsonl").read_text()


def test_ids_without_a_task_are_named(checkout, tmp_path, capsys):
    first, second = load_set("tbench2/train8").ids[:2]
    folder = tmp_path / "checkout"
    folder.mkdir()
    for path in checkout.iterdir():
        if path.name not in (first, second):
            (folder / path.name).symlink_to(path)
    (folder / first).mkdir()
    assert build("train8", folder, tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert f"no task.toml for 2 of the 8 tasks of tbench2/train8 ({first}, {second})" in said
    assert not (tmp_path / "out").exists()


def test_a_task_both_trained_on_and_held_out_is_refused(checkout, tmp_path):
    held_out = load_set("tbench2/eval20").ids[0]
    leaky = TaskSet("tbench2/leaky", "tbench2", (held_out,), "")
    with pytest.raises(UserError, match=rf"share 1 tasks \({held_out}\)"):
        write_rows(leaky, checkout, "prompt", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("set_name", ["train96", "tbench2/none", "eval20"])
def test_an_unknown_set_gets_one_sentence(checkout, tmp_path, capsys, set_name):
    assert build(set_name, checkout, tmp_path) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_folder_that_is_not_there_gets_one_sentence(tmp_path, capsys):
    assert build("train8", tmp_path / "no", tmp_path) == 2
    assert "write --tasks-dir FOLDER" in capsys.readouterr().err
