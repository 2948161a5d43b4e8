"""A run's identity: same facts, same hash; any deciding fact changes it, and is named."""

import hashlib
import json
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from glm52_tbench2.config import identity as module
from glm52_tbench2.config.compose import compose, leaves
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.identity import (
    EXCLUDED,
    NODE_TELLS,
    NOT_RECORDED,
    PACKAGES,
    Identity,
    identify,
    load_identity,
    save_identity,
)
from glm52_tbench2.config.paths import DATA


@dataclass(frozen=True)
class Set:
    name: str
    ids: tuple[str, ...]

    @property
    def sha256(self) -> str:
        return hashlib.sha256("\n".join(self.ids).encode()).hexdigest()


TASKS = tuple(sorted(path.name for path in (DATA / "mini" / "tasks").iterdir())[:3])
SETS = [Set("mini/three", TASKS)]


@pytest.fixture(scope="module")
def smoke() -> Identity:
    return identify(compose(["experiment=smoke"]), SETS)


def test_equal_facts_give_an_equal_hash(smoke: Identity) -> None:
    other = identify(compose(["experiment=smoke"]), SETS)
    assert other == smoke
    assert other.hash == smoke.hash == smoke.expected_hash()
    assert smoke.differences(other) == []


@pytest.mark.parametrize(
    "override",
    ["seed=2", "clip.eps_low=0.1", "optim.lr=1e-4", "cluster.slurm.container_image=a.sqsh"],
)
def test_a_knob_that_decides_changes_the_hash_and_is_named(override: str, smoke: Identity) -> None:
    other = identify(compose(["experiment=smoke", override]), SETS)
    assert other.hash != smoke.hash
    (difference,) = smoke.differences(other)
    assert override.partition("=")[0] in difference


@pytest.mark.parametrize(
    "override",
    ["name=x", "tracking.wandb=disabled", "runs_dir=elsewhere", "cluster.slurm.time_min=9"],
)
def test_a_knob_that_decides_nothing_does_not(override: str, smoke: Identity) -> None:
    assert identify(compose(["experiment=smoke", override]), SETS).hash == smoke.hash


def test_every_exclusion_is_a_knob() -> None:
    knobs = [f"{name}." for name in leaves(compose([]))]
    assert [one for one in EXCLUDED if not any(k.startswith(f"{one}.") for k in knobs)] == []


def test_a_commit_alone_changes_nothing(smoke: Identity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.Git, "told", lambda self: ("f" * 40, "123456789abc"))
    other = identify(compose(["experiment=smoke"]), SETS, {"rerun_of": "smoke-1"})
    assert other.made is not None and other.made.revision == "f" * 40
    assert other.made.origin == {"rerun_of": "smoke-1"}
    assert other.hash == smoke.hash


def test_a_source_file_changed_added_or_removed_is_another_code(
    smoke: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = module.sources()
    changed = {**now, "trainer/step.py": "0" * 64, "trainer/new.py": "1" * 64}
    del changed["envs/shell.py"]
    monkeypatch.setattr(module, "sources", lambda: changed)
    other = identify(compose(["experiment=smoke"]), SETS)
    assert other.hash != smoke.hash
    assert smoke.differences(other) == [
        f"code: {smoke.code[:12]} -> {other.code[:12]} "
        "(changed trainer/step.py; added trainer/new.py; removed envs/shell.py)"
    ]


def test_of_many_changed_files_five_are_named(smoke: Identity) -> None:
    assert smoke.made is not None
    other = replace(
        smoke,
        code="0" * 64,
        made=replace(smoke.made, sources=dict.fromkeys(smoke.made.sources, "")),
    )
    (difference,) = smoke.differences(other)
    assert difference.count(".py") == 5
    assert f"and {len(smoke.made.sources) - 5} more)" in difference


@pytest.fixture
def tasks_dir(tmp_path: Path) -> Path:
    """A copy of the tasks, free to be changed."""
    for task in TASKS:
        shutil.copytree(DATA / "mini" / "tasks" / task, tmp_path / "tasks" / task)
    return tmp_path / "tasks"


def with_tasks(tasks_dir: Path) -> Identity:
    return identify(compose(["experiment=smoke", f"data.tasks_dir={tasks_dir}"]), SETS)


def test_the_same_tasks_elsewhere_are_the_same(smoke: Identity, tasks_dir: Path) -> None:
    assert with_tasks(tasks_dir).tasks == smoke.tasks


@pytest.mark.parametrize("change", ["content", "new file", "executable", "gone file", "renamed"])
def test_a_task_that_changes_is_named_with_its_set(tasks_dir: Path, change: str) -> None:
    before = with_tasks(tasks_dir)
    path = tasks_dir / TASKS[1] / "tests" / "test.sh"
    if change == "content":
        path.write_text(path.read_text().replace("1", "0", 1))
    elif change == "new file":
        (path.parent / "more" / "deep").mkdir(parents=True)
        (path.parent / "more" / "deep" / "empty").touch()
    elif change == "executable":
        path.chmod(path.stat().st_mode ^ 0o100)
    elif change == "gone file":
        path.unlink()
    else:
        path.rename(path.with_name("test2.sh"))
    after = with_tasks(tasks_dir)
    assert after.hash != before.hash
    (difference,) = before.differences(after)
    assert difference.startswith("tasks of mini/three: ")
    assert difference.endswith(f" (changed {TASKS[1]})")


def test_tasks_that_are_not_here_are_absent(tasks_dir: Path) -> None:
    shutil.rmtree(tasks_dir / TASKS[0])
    assert with_tasks(tasks_dir).tasks == {"mini/three": "absent"}


def test_other_members_of_a_set_are_named(smoke: Identity) -> None:
    config = compose(["experiment=smoke"])
    other = identify(config, [Set("mini/three", TASKS[:2])])
    names, contents = smoke.differences(other)
    assert names.startswith("task set mini/three: ") and f"(removed {TASKS[2]})" in names
    assert contents.startswith("tasks of mini/three: ") and f"(removed {TASKS[2]})" in contents


def test_a_file_that_cannot_be_read_is_told_in_a_sentence(
    tasks_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refuse(path: str | Path, flags: int) -> int:
        if str(path).startswith(str(tasks_dir)):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags)

    monkeypatch.setattr("glm52_tbench2.config.fingerprints.os.open", refuse)
    with pytest.raises(UserError, match=f"{TASKS[0]}.*cannot be read: Permission denied"):
        with_tasks(tasks_dir)


@pytest.mark.parametrize("own", ["python=/opt/env/bin/python", "container_image=glm52.sqsh"])
def test_an_interpreter_of_the_nodes_own_is_told_by_a_node(own: str) -> None:
    config = compose(["experiment=smoke", "cluster=slurm", f"cluster.slurm.{own}"])
    queued, node = identify(config, SETS), identify(config, SETS, on_node=True)
    assert set(queued.packages.values()) == {NODE_TELLS}
    assert queued.differences(node) == node.differences(queued) == []
    other = replace(node, code="0" * 64)
    assert [line.split(":")[0] for line in queued.differences(other)] == ["code"]
    completed = queued.completed(node)
    assert (completed, completed.made) == (node, node.made)
    assert completed.hash == completed.expected_hash() == node.hash != queued.hash
    assert completed.completed(replace(node, packages={})) is completed


def test_of_a_job_with_this_interpreter_a_node_tells_the_machine_alone(smoke: Identity) -> None:
    config = compose(["experiment=smoke", "cluster=slurm"])
    queued, node = identify(config, SETS), identify(config, SETS, on_node=True)
    assert queued.packages == smoke.packages
    assert queued.made is not None and node.made is not None
    assert set(queued.made.machine.values()) == {NODE_TELLS}
    completed = queued.completed(replace(node, packages={}))
    assert completed.made == node.made
    assert (completed.packages, completed.hash) == (smoke.packages, queued.hash)


def test_it_is_read_back_with_its_history(tmp_path: Path, smoke: Identity) -> None:
    save_identity(smoke, tmp_path, [{"differences": ["seed"]}])
    found, history = load_identity(tmp_path)
    assert (found, found.hash, found.made) == (smoke, smoke.hash, smoke.made)
    assert history == [{"differences": ["seed"]}]


def test_what_a_file_does_not_record_differs_from_everything(
    tmp_path: Path, smoke: Identity
) -> None:
    save_identity(smoke, tmp_path, [])
    path = tmp_path / "identity.json"
    content = json.loads(path.read_text())
    del content["made"], content["tasks"]
    content["code"] = {"revision": "f" * 40, "changes": ""}
    path.write_text(json.dumps(content))
    found, _ = load_identity(tmp_path)
    assert found.hash == smoke.hash and found.made is None
    code, tasks = found.differences(smoke)
    assert code == f"code: {NOT_RECORDED} -> {smoke.code[:12]}"
    assert tasks.startswith(f"tasks of mini/three: {NOT_RECORDED} -> ")
    save_identity(found, tmp_path, [{"differences": [code, tasks]}])  # as a resume with --allow
    assert load_identity(tmp_path)[0] == found


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"hash": "x"})])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "identity.json").write_text(content)
    with pytest.raises(UserError, match="damaged"):
        load_identity(tmp_path)


def test_a_package_that_computes_on_gpus_counts_where_it_is_installed(
    smoke: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(smoke.packages) == set(PACKAGES)
    before = module._version
    monkeypatch.setattr(
        module, "_version", lambda name: "2.9" if name == "transformer-engine" else before(name)
    )
    other = identify(compose(["experiment=smoke"]), SETS)
    assert smoke.differences(other) == ["package transformer-engine: absent -> 2.9"]
