"""The code at hand: known by contents, and what git says of it."""

import re
import subprocess
from pathlib import Path

import pytest

from glm52_tbench2.config.checkout import ASKED, CODE, READERS, Git, machine, sources
from glm52_tbench2.config.fingerprints import tree_hash


def test_the_sources_are_those_that_decide_results() -> None:
    names = set(sources())
    assert {"trainer/step.py", "config/schema.py", "engines/cpu/seeds.py"} <= names
    assert not [n for n in names if n.startswith(READERS) and not n.startswith(ASKED)]
    assert all((CODE / name).exists() for name in READERS)


def test_nothing_that_decides_results_imports_what_only_shows() -> None:
    """But for the launcher, which shows a run and sums it up, and sweeps, which do the same."""
    shows = re.compile(
        r"^ *(?:from|import) .*"
        r"\b(?:analysis(?!\.sentinel)|docs|influence|knobs|show|warm_start)\b",
        re.M,
    )
    rooms = [name for name in sources() if not name.startswith("launch/")]
    assert [name for name in rooms if shows.search((CODE / name).read_text())] == []


def test_what_the_trainer_asks_counts_and_needs_nothing_else_that_only_shows() -> None:
    asked = [name for name in sources() if name.startswith("analysis/")]
    assert "analysis/sentinel/detectors.py" in asked
    rooms = {CODE / "analysis", CODE / "analysis" / "sentinel"}
    for name in asked:
        for dots, module in re.findall(
            r"^from (\.+)([\w.]*) import", (CODE / name).read_text(), re.M
        ):
            folder = (CODE / name).parents[len(dots) - 1]
            used = (folder / module.replace(".", "/")).relative_to(CODE).as_posix()
            if folder in rooms and module:
                assert f"{used}.py" in asked or used == "analysis/sentinel", name


def test_a_new_source_file_counts_and_other_files_do_not(tmp_path: Path) -> None:
    (tmp_path / "rollout").mkdir()
    (tmp_path / "rollout" / "batch.py").write_text("a = 1\n")
    before = sources(tmp_path)
    (tmp_path / "rollout" / "__pycache__").mkdir()
    (tmp_path / "rollout" / "__pycache__" / "x.py").write_text("")
    (tmp_path / "rollout" / "notes.txt").write_text("")
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli" / "runs.py").write_text("")
    assert sources(tmp_path) == before
    (tmp_path / "rollout" / "new.py").write_text("")
    assert set(sources(tmp_path)) - set(before) == {"rollout/new.py"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("glm52_tbench2/a.py", "conf/config.yaml", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("one\n")
    user = ("-c", "user.name=n", "-c", "user.email=e@x")
    for arguments in (("init", "-q"), ("add", "."), (*user, "commit", "-qm", "first")):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True)
    return tmp_path


def test_changes_of_known_and_of_new_files_are_seen(checkout: Path) -> None:
    head = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    revision = subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()
    assert Git(checkout).told() == (revision, "")
    (checkout / "README.md").write_text("prose\n")
    (checkout / "notes").write_text("prose\n")
    assert Git(checkout).told() == (revision, "")
    found = []
    (checkout / "glm52_tbench2" / "a.py").write_text("two\n")
    found.append(Git(checkout).told()[1])
    (checkout / "conf" / "new.yaml").write_text("x: 1\n")
    found.append(Git(checkout).told()[1])
    (checkout / "conf" / "new.yaml").write_text("x: 2\n")
    found.append(Git(checkout).told()[1])
    (checkout / "glm52_tbench2" / "a.py").write_text("one\n")
    found.append(Git(checkout).told()[1])
    assert len(set(found)) == 4
    assert all(len(changes) == 12 for changes in found)


def test_a_folder_inside_another_checkout_has_no_revision(checkout: Path) -> None:
    assert Git(checkout / "conf").told() == ("unknown", "")


def test_nothing_has_no_hash(tmp_path: Path) -> None:
    assert tree_hash(tmp_path) == tree_hash(tmp_path / "nowhere") == "absent"


def test_the_machine_is_named() -> None:
    found = machine()
    assert found["cpu"] and found["cores"] > 0
    assert found["python"].startswith("3.11.")
