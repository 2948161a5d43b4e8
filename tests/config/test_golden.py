"""No default changes unseen: what each experiment composes to lies in tests/golden."""

import difflib

import pytest

from glm52_tbench2.config.compose import compose, to_yaml

from ..golden.refresh import COMPOSITIONS, FOLDER


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_a_composition_is_as_it_was_reviewed(name):
    now = to_yaml(compose(COMPOSITIONS[name])).splitlines()
    path = FOLDER / f"{name}.yaml"
    reviewed = path.read_text().splitlines() if path.exists() else []
    changes = [
        line
        for line in difflib.unified_diff(reviewed, now, "reviewed", "now", lineterm="", n=0)
        if not line.startswith("@@")
    ]
    assert not changes, "If this is meant, run `make golden` and commit it:\n" + "\n".join(changes)


def test_there_is_no_golden_file_of_an_experiment_that_is_gone():
    assert {path.stem for path in FOLDER.glob("*.yaml")} == COMPOSITIONS.keys()
