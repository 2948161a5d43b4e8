"""The table of knobs."""

import io

import pytest
from rich.console import Console

from glm52_tbench2 import cli
from glm52_tbench2.config.docs import knob_docs
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.knobs import show_knobs


def printed(word: str, *overrides: str, terminal: bool = False) -> str:
    out = io.StringIO()
    show_knobs(word, list(overrides), Console(file=out, force_terminal=terminal, width=80))
    return out.getvalue()


def rows(word: str, *overrides: str) -> dict[str, list[str]]:
    return {
        name: rest
        for name, *rest in (line.split("\t") for line in printed(word, *overrides).splitlines())
    }


def test_every_knob_is_one_line_with_its_value() -> None:
    found = rows("")
    assert list(found) == list(knob_docs())
    assert found["seed"] == ["1", knob_docs()["seed"]]
    assert found["clip"][0] == ""
    assert found["clip.dual_clip"][0] == "null" and found["clip.std_normalise"][0] == "true"


def test_the_values_are_those_of_the_overrides() -> None:
    assert rows("optim.lr")["optim.lr"][0] != "0.5"
    assert rows("optim.lr", "optim.lr=0.5")["optim.lr"][0] == "0.5"
    assert rows("data.train", "experiment=smoke", "data=mini8")["data.train"][0] == "mini/mini8"


def test_choices_are_named_once() -> None:
    assert rows("clip.loss")["clip.loss"] == ["ppo", "Policy loss. One of: ppo, gspo, cispo."]
    assert rows("tracking.wandb")["tracking.wandb"][1] == knob_docs()["tracking.wandb"]


def test_a_part_of_a_name_will_do_where_no_name_starts_with_it() -> None:
    assert list(rows("temperature")) == ["rollout.temperature", "eval.temperature"]
    assert list(rows("clip.eps")) == ["clip.eps_low", "clip.eps_high"]


def test_a_list_on_a_terminal_keeps_its_brackets() -> None:
    assert "[check" in printed("rollout.filters", terminal=True)


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UserError, match=r"did you mean optim\.lr\?"):
        show_knobs("optim.lrr", [])


def test_the_verb_tells_a_name_from_an_override(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["knobs", "experiment=smoke", "steps"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "steps\t24\tTraining steps."
    assert cli.main(["knobs", "steps", "seed"]) == 2
