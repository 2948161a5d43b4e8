"""Reading tasks from disk, and the sentences for broken ones."""

import shutil
from pathlib import Path

import pytest

from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.paths import DATA
from glm52_tbench2.tasks.mini import committed
from glm52_tbench2.tasks.suite import REQUIRED, load_suite, load_task, select

MINI = DATA / "mini" / "tasks"


@pytest.fixture
def task_dir(tmp_path: Path) -> Path:
    """A private copy of one good task."""
    return Path(shutil.copytree(next(MINI.iterdir()), tmp_path / "some-task"))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_reads_every_task_of_mini() -> None:
    suite = load_suite(MINI)
    assert list(suite) == list(committed())
    for task_id, task in suite.items():
        instance = committed()[task_id]
        assert task.instruction == instance.instruction
        assert (task.difficulty, task.category, task.family) == (
            instance.difficulty,
            instance.category,
            instance.family,
        )
        assert task.workdir == "/app"
        assert (task.memory_mb, task.storage_mb) == (256, 64)
        assert (task.agent_timeout_s, task.verifier_timeout_s) == (300, 30)


def test_reads_the_older_sizes(task_dir: Path) -> None:
    edit(task_dir / "task.toml", "memory_mb = 256", 'memory = "2G"')
    edit(task_dir / "task.toml", "storage_mb = 64", 'storage = "512M"')
    task = load_task(task_dir)
    assert (task.memory_mb, task.storage_mb) == (2048, 512)


def test_the_last_workdir_of_the_dockerfile_holds(task_dir: Path) -> None:
    with (task_dir / "environment" / "Dockerfile").open("a") as file:
        file.write("WORKDIR /workspace\n")
    assert load_task(task_dir).workdir == "/workspace"


def test_a_task_without_a_wrong_attempt_is_a_task(task_dir: Path) -> None:
    (task_dir / "solution" / "wrong.sh").unlink()
    assert load_task(task_dir).wrong is None


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_file_is_named(task_dir: Path, name: str) -> None:
    (task_dir / name).unlink()
    with pytest.raises(UserError, match=f"some-task has no {name}"):
        load_task(task_dir)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[metadata]", "[metadata", "not valid TOML"),
        ("timeout_sec = 30.0", 'timeout_sec = "soon"', "above 0 for timeout_sec in .verifier."),
        ("timeout_sec = 300.0", "timeout_sec = -1", "above 0 for timeout_sec in .agent."),
        ("timeout_sec = 300.0", "", "lacks timeout_sec in .agent."),
        ("memory_mb = 256", 'memory = "lots"', "memory_mb = 2048"),
        ("storage_mb = 64", "", "storage_mb = 2048"),
        ("[task]\n", "verifier = 3\n[task]\n", "not valid TOML|must be a table"),
    ],
)
def test_a_broken_task_toml_gets_one_sentence(
    task_dir: Path, old: str, new: str, said: str
) -> None:
    edit(task_dir / "task.toml", old, new)
    with pytest.raises(UserError, match=said) as caught:
        load_task(task_dir)
    assert str(task_dir / "task.toml") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["task.toml", "instruction.md", "environment/Dockerfile"])
def test_a_file_that_is_not_utf8_is_named(task_dir: Path, name: str) -> None:
    with (task_dir / name).open("ab") as file:
        file.write(b"# caf\xe9\n")
    with pytest.raises(UserError, match=f"some-task/{name} is not UTF-8"):
        load_task(task_dir)


def test_a_folder_without_tasks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(UserError, match="no task in"):
            load_suite(folder)


def test_other_folders_beside_tasks_are_ignored(task_dir: Path) -> None:
    (task_dir.parent / ".git").mkdir()
    (task_dir.parent / "README.md").write_text("hello")
    assert list(load_suite(task_dir.parent)) == ["some-task"]


def test_select_names_a_missing_task_and_the_nearest() -> None:
    suite = load_suite(MINI)
    first = next(iter(suite))
    assert [task.id for task in select(suite, [first])] == [first]
    with pytest.raises(UserError, match=f"no task {first}s .*did you mean {first}"):
        select(suite, [f"{first}s"])
