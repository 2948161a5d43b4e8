"""Of any two sides: symmetric, empty on itself, and no changed leaf is missed."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glm52_tbench2.analysis.diff.causes import conclude
from glm52_tbench2.analysis.diff.compare import compare
from glm52_tbench2.analysis.diff.sides import Code, SetFacts, Side, read_sides
from glm52_tbench2.config.classes import LABEL, Effect, effect
from glm52_tbench2.config.compose import compose, leaves

UNTIMED = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
(BASE, _) = read_sides(["reference", "reference"])
KNOBS = sorted(name for name in BASE.knobs if name != LABEL)


def another(value: Any) -> st.SearchStrategy[Any]:
    """Values of the same kind that differ from `value`."""
    kinds: dict[type, st.SearchStrategy[Any]] = {
        bool: st.booleans(),
        int: st.integers(-(2**60), 2**60),
        float: st.floats(allow_nan=False),
        str: st.text(max_size=8),
        list: st.lists(st.integers(0, 99), max_size=4),
        type(None): st.one_of(st.integers(), st.text(max_size=4)),
    }
    return kinds[type(value)].filter(lambda found: found != value)


@st.composite
def mutated(draw: st.DrawFn) -> tuple[Side, set[str]]:
    """The reference with some leaves changed, and their names."""
    names = draw(st.lists(st.sampled_from(KNOBS), min_size=1, max_size=6, unique=True))
    knobs, sets = dict(BASE.knobs), dict(BASE.sets)
    for name in names:
        if draw(st.booleans()) and name not in sets:
            del knobs[name]
            continue
        knobs[name] = draw(another(knobs[name]))
        if name in sets:
            sets[name] = SetFacts(knobs[name], None, None)
    return replace(BASE, label="B", knobs=knobs, sets=sets), set(names)


@UNTIMED
@given(mutated())
def test_no_changed_leaf_is_missed_and_no_other_is_named(found: tuple[Side, set[str]]) -> None:
    other, names = found
    differences = compare([BASE, other])
    assert {one.name for one in differences} == names
    assert all(one.effect is effect(one.name) for one in differences)


@UNTIMED
@given(mutated())
def test_the_sides_can_be_swapped(found: tuple[Side, set[str]]) -> None:
    other, _ = found
    mine, theirs = compare([BASE, other]), compare([other, BASE])
    assert [(one.group, one.name, one.effect) for one in mine] == [
        (one.group, one.name, one.effect) for one in theirs
    ]
    assert {one.name: one.values for one in mine} == {one.name: one.values for one in theirs}
    forth, back = conclude(BASE, other, mine), conclude(other, BASE, theirs)
    assert forth.verdict is back.verdict
    assert [one.name for one in forth.causes] == [one.name for one in back.causes]


@UNTIMED
@given(mutated())
def test_a_side_differs_in_nothing_from_itself(found: tuple[Side, set[str]]) -> None:
    other, _ = found
    assert compare([other, replace(other, label="C")]) == []


@UNTIMED
@given(mutated(), mutated())
def test_a_third_side_hides_no_difference(
    second: tuple[Side, set[str]], third: tuple[Side, set[str]]
) -> None:
    sides = [BASE, second[0], replace(third[0], label="C")]
    assert {one.name for one in compare(sides)} == second[1] | third[1]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"weights": "b" * 64}, "starting weights"),
        ({"code": Code("", "", "d" * 64)}, "code"),
        ({"packages": {"torch": "2"}}, "torch"),
        ({"machine": {"cpu": "another"}}, "cpu"),
    ],
)
def test_facts_beside_the_config_are_compared_too(change: dict[str, Any], name: str) -> None:
    whole = replace(
        BASE,
        weights="a" * 64,
        code=Code("", "", "c" * 64),
        packages={"torch": "1"},
        machine={"cpu": "one"},
    )
    assert [one.name for one in compare([whole, replace(whole, label="B", **change)])] == [name]
    unknown = replace(whole, label="B", **dict.fromkeys(change))
    assert compare([whole, unknown]) == []


def test_every_leaf_of_the_schema_is_a_knob_of_a_side() -> None:
    flat = set(BASE.knobs)
    for name, value in leaves(compose([])).items():
        assert (
            {f"{name}.{key}" for key in value} <= flat if isinstance(value, dict) else name in flat
        )


def test_true_is_not_one_and_a_whole_float_is_its_integer() -> None:
    def with_value(label: str, value: Any) -> Side:
        return replace(BASE, label=label, knobs={**BASE.knobs, "steps": value})

    assert compare([with_value("A", 1), with_value("B", 1.0)]) == []
    assert compare([with_value("A", 1), with_value("B", True)]) != []
    assert compare([with_value("A", "1"), with_value("B", 1)]) != []


def test_classes_of_a_difference_are_shown_in_their_order() -> None:
    assert [one.value for one in Effect] == [
        "changes what is measured",
        "changes training",
        "changes speed only",
        "cosmetic",
    ]
