"""What the command says of itself."""

import subprocess
import sys

import pytest

from glm52_tbench2 import cli

LEAVES = [
    "eval",
    "resume",
    "rerun",
    "verify",
    "sweep",
    "sweep resume",
    "sweep table",
    "report",
    "samples",
    "forensics",
    "influence",
    "diff",
    "tasks",
    "tasks show",
    "tasks check",
    "tasks build",
    "knobs",
    "warm-start",
]


def test_the_usage_names_every_verb_in_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines if line[:2] == "  " and line[2] != " "} == set(
        cli.VERBS
    )
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("verb", LEAVES)
def test_the_help_of_a_verb_says_what_it_does(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stopped:
        cli.main([*verb.split(), "--help"])
    said = capsys.readouterr().out
    usage, told = said.split("\n\n")[:2]
    assert stopped.value.code == 0
    assert usage.startswith(f"usage: glm52 {verb} ") and told.endswith((".", "?"))
    assert max(map(len, said.splitlines())) <= 80


def test_the_help_of_train_is_the_groups_and_not_every_value() -> None:
    command = [sys.executable, "-m", "glm52_tbench2.cli", "train", "--help"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.startswith("usage: glm52 train ") and len(said.splitlines()) < 30
    assert "\nexperiment: job1794, job2350, set_size, smoke\n" in said


def test_a_mistyped_verb_is_recognised(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trian"]) == 2
    assert "did you mean train?" in capsys.readouterr().err
    assert cli.main(["xyz"]) == 2
    assert "There is no verb 'xyz'; one of: train," in capsys.readouterr().err


@pytest.mark.parametrize("words", [("diff", "smoke", "reference"), ("knobs", "seed")])
def test_a_reader_that_leaves_early_gets_no_verdict(words):
    """Of much output and of little, which is written at the end."""
    program = "import sys; from glm52_tbench2.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        told = process.stderr.read()
    assert (process.returncode, told) == (141, b"")
