"""No default changes unseen: what each experiment composes to, and the job it would be, lie in
tests/golden."""

import difflib

import pytest

from glm52_tbench2.config.compose import compose, to_yaml

from ..golden.refresh import COMPOSITIONS, FOLDER, JOBS, job


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_a_composition_is_as_it_was_reviewed(name):
    as_reviewed(f"{name}.yaml", to_yaml(compose(COMPOSITIONS[name])))


@pytest.mark.parametrize("name", JOBS)
def test_a_job_is_as_it_was_reviewed(name):
    as_reviewed(f"{name}.sh", job(JOBS[name]))


def as_reviewed(name, now):
    path = FOLDER / name
    reviewed = path.read_text().splitlines() if path.exists() else []
    changes = [
        line
        for line in difflib.unified_diff(
            reviewed, now.splitlines(), "reviewed", "now", lineterm="", n=0
        )
        if not line.startswith("@@")
    ]
    assert not changes, "If this is meant, run `make golden` and commit it:\n" + "\n".join(changes)


def test_there_is_no_golden_file_of_an_experiment_that_is_gone():
    assert {path.stem for path in FOLDER.glob("*.yaml")} == COMPOSITIONS.keys()
