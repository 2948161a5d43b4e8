"""`glm52 plan --search`: the layouts of the nodes there are."""

import json

import pytest

from glm52_tbench2.cli import main as glm52
from glm52_tbench2.config import checks
from glm52_tbench2.config.compose import compose, compose_unchecked
from glm52_tbench2.launch.plan import search
from glm52_tbench2.launch.plan.findings import memory_problems
from glm52_tbench2.trainer import limits


@pytest.fixture(scope="module")
def found():
    """Every layout of the reference's eight nodes."""
    return search.search(compose([]))


def test_what_fits_comes_first_and_the_fastest_of_it(found):
    layouts, _ = found
    fits = [one.problem is None for one in layouts]
    assert fits == sorted(fits, reverse=True) and 0 < sum(fits) < len(fits)
    floors = [one.floor_s for one in layouts if one.problem is None]
    assert None not in floors and floors == sorted(floors)


def test_what_fits_composes_and_is_refused_by_nothing_else(found):
    layouts, always = found
    fitting = [one for one in layouts if one.problem is None]
    for one in (fitting[0], fitting[len(fitting) // 2], fitting[-1]):
        config = compose(one.overrides)
        assert memory_problems(config) == []
        assert [problem for problem in limits.problems(config) if problem not in always] == []


def test_what_does_not_fit_says_why_in_one_line(found):
    layouts, _ = found
    for one in layouts:
        assert one.problem is None or ("\n" not in one.problem and one.problem.endswith("."))


def test_every_layout_is_there_once_and_the_own_one_is_marked(found):
    layouts, _ = found
    assert len({one.name for one in layouts}) == len(layouts)
    assert [one.name for one in layouts if one.current] == ["TP2 CP4 PP4 (18-20-20-20) EP8 DP1"]


def test_stages_start_where_they_may(found):
    cuts = {(one.overrides[2], one.overrides[3]) for one in found[0]}
    assert len(cuts) > 3
    for cut in cuts:
        problems = checks.problems(compose_unchecked(list(cut)))
        assert not any("starts a stage" in problem for problem in problems)


def test_fewer_nodes_are_searched_though_the_layout_is_for_more(capsys):
    code = glm52(["plan", "--search", "--json", "parallel.nodes=4"])
    shown = json.loads(capsys.readouterr().out)
    assert shown["layouts"]
    assert not any(one["current"] for one in shown["layouts"])
    fits = any(one["fits"] for one in shown["layouts"]) and not shown["problems"]
    assert code == (0 if fits else 2)


def test_the_small_model_fits_two_ranks(capsys):
    assert glm52(["plan", "--search", "experiment=smoke", "parallel.gpus_per_node=2"]) == 0
    text = capsys.readouterr().out
    assert "of 2 x" not in text and "1 x 2 ranks fit" in text
    assert "TP2 CP1 PP1" in text
