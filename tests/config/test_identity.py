"""A run's identity: same facts, same hash; any deciding fact changes it."""

import json

import pytest

from glm52_tbench2.config.compose import compose, leaves
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.identity import EXCLUDED, identify, load_identity, save_identity

SETS = {"mini/mini69": "a" * 64}


@pytest.fixture(scope="module")
def smoke():
    return identify(compose(["experiment=smoke"]), SETS)


def test_equal_facts_give_an_equal_hash(smoke):
    assert identify(compose(["experiment=smoke"]), SETS) == smoke
    assert identify(compose(["experiment=smoke"]), SETS).hash == smoke.hash


@pytest.mark.parametrize("override", ["seed=2", "clip.eps_low=0.1", "optim.lr=1e-4"])
def test_a_knob_that_decides_changes_the_hash_and_is_named(override, smoke):
    other = identify(compose(["experiment=smoke", override]), SETS)
    assert other.hash != smoke.hash
    (difference,) = smoke.differences(other)
    assert override.partition("=")[0] in difference


@pytest.mark.parametrize("override", ["name=x", "tracking.wandb=disabled", "runs_dir=elsewhere"])
def test_a_knob_that_decides_nothing_does_not(override, smoke):
    assert identify(compose(["experiment=smoke", override]), SETS).hash == smoke.hash


def test_another_task_set_changes_the_hash(smoke):
    other = identify(compose(["experiment=smoke"]), {"mini/mini69": "b" * 64})
    assert other.hash != smoke.hash
    assert "mini/mini69" in smoke.differences(other)[0]


def test_every_exclusion_is_a_knob():
    assert set(EXCLUDED) <= set(leaves(compose([])))


def test_it_is_read_back_with_its_history(tmp_path, smoke):
    save_identity(smoke, tmp_path, [{"allowed": ["seed"]}])
    found, history = load_identity(tmp_path)
    assert found == smoke and found.hash == smoke.hash
    assert history == [{"allowed": ["seed"]}]


@pytest.mark.parametrize("content", ["{", json.dumps({"hash": "x"})])
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / "identity.json").write_text(content)
    with pytest.raises(UserError, match="damaged"):
        load_identity(tmp_path)
