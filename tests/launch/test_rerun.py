"""`rerun` whole, over scripted roles."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from glm52_tbench2.config.checkout import sources
from glm52_tbench2.config.compose import load_run_config, save_run_config
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.identity import load_identity
from glm52_tbench2.launch.rerun import rerun
from glm52_tbench2.launch.run_folder import create, open_for_resume

from .scripted import core, server

WRITTEN = """
import json, pathlib
identity = json.loads(pathlib.Path("{run}/identity.json").read_text())
pathlib.Path("{run}/seen").write_text(identity["hash"])
"""


@pytest.fixture(autouse=True)
def roles(monkeypatch):
    """In the place of the real roles: a trainer that notes the identity it finds at its start."""

    def place(config, run_dir: Path):
        return [server(), core(WRITTEN.replace("{run}", str(run_dir)))]

    monkeypatch.setattr("glm52_tbench2.launch.train.place", place)


@pytest.fixture
def first(smoke) -> Path:
    return create(smoke)


def others(first: Path) -> list[Path]:
    return [path for path in first.parent.iterdir() if path != first]


def change_code(monkeypatch) -> None:
    changed = {**sources(), "trainer/step.py": "0" * 64}
    monkeypatch.setattr("glm52_tbench2.config.identity.sources", lambda: changed)


def test_the_same_run_goes_into_a_folder_of_its_own_beside_the_first(first, smoke, capsys):
    assert rerun(first, allow=False) == 0
    (second,) = others(first)
    assert replace(load_run_config(second), runs_dir=smoke.runs_dir) == smoke
    before, after = load_identity(first)[0], load_identity(second)[0]
    assert after.hash == before.hash
    assert after.made.origin == {"rerun_of": first.name}
    assert (second / "seen").read_text() == after.hash  # before the first step
    assert f"glm52 verify {first} {second}" in capsys.readouterr().out


def test_a_run_that_was_moved_is_repeated_where_it_lies(first, tmp_path):
    moved = first.rename(tmp_path / "moved")
    assert rerun(moved, allow=False) == 0
    (second,) = tmp_path.glob("smoke-*")
    assert load_identity(second)[0].made.origin == {"rerun_of": "moved"}


def test_what_differs_now_is_named_and_nothing_is_made(first, monkeypatch):
    change_code(monkeypatch)
    with pytest.raises(UserError, match=r"code: .* \(changed trainer/step\.py\)") as refused:
        rerun(first, allow=False)
    assert f"glm52 rerun {first} --allow" in str(refused.value)
    assert others(first) == []


def test_a_changed_config_is_another_run(first, smoke):
    save_run_config(replace(smoke, seed=7), first)
    with pytest.raises(UserError, match="config seed: 1 -> 7"):
        rerun(first, allow=False)


def test_allowed_differences_are_kept_with_the_origin(first, monkeypatch):
    change_code(monkeypatch)
    assert rerun(first, allow=True) == 0
    (second,) = others(first)
    before, after = load_identity(first)[0], load_identity(second)[0]
    assert after.hash != before.hash
    assert after.made.origin["rerun_of"] == first.name
    (difference,) = after.made.origin["differences"]
    assert "changed trainer/step.py" in difference


def test_a_run_that_went_on_as_another_cannot_be_repeated(first, smoke, monkeypatch):
    with monkeypatch.context() as patch:
        change_code(patch)
        open_for_resume(first, allow=True)
    with pytest.raises(UserError, match=r"resume of .*, after step 0: code: .* trainer/step\.py"):
        rerun(first, allow=False)


def test_a_run_without_contents_of_its_code_is_told_so(first):
    path = first / "identity.json"
    content = json.loads(path.read_text())
    del content["made"], content["tasks"]
    content["code"] = {"revision": "f" * 40, "changes": ""}
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"(?s)code: not recorded -> .*tasks of .*: not recorded"):
        rerun(first, allow=False)


def test_no_run_folder_is_told_as_such(tmp_path):
    with pytest.raises(UserError, match="not a run folder"):
        rerun(tmp_path, allow=False)
