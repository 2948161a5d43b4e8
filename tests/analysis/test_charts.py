"""Charts: what is drawn, what is left out, and that nothing from a run can break the page."""

import html
import json
import math
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glm52_tbench2.analysis.charts import (
    HEIGHT,
    WIDTH,
    Cell,
    Layer,
    Range,
    Series,
    Style,
    heat_table,
    line_chart,
    stacked_bars,
)

# A loaded machine is slow, not wrong.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

NASTY = "a<b> & \"c\" 'd' </svg><script>"


def drawn(svg: str | None, cls: str) -> list[ET.Element]:
    """Elements of a class, the picture parsed as XML."""
    assert svg is not None
    return [e for e in ET.fromstring(svg).iter() if cls in (e.get("class") or "").split()]


def data_of(svg: str | None) -> Any:
    assert svg is not None
    return json.loads(ET.fromstring(svg).get("data-chart") or "")


def test_a_curve_is_one_line_and_a_gap_parts_it() -> None:
    whole = line_chart([Series("s", {1: 1.0, 2: 2.0, 3: 1.5}, 1)], "s")
    assert len(drawn(whole, "line")) == 1
    parted = line_chart([Series("s", {1: 1.0, 2: 2.0, 3: math.nan, 4: 1.0, 5: 3.0}, 1)], "s")
    assert len(drawn(parted, "line")) == 2
    assert data_of(parted)["steps"] == [1, 2, 4, 5]


def test_a_line_of_every_step_is_parted_where_one_is_missing_and_another_is_drawn_across() -> None:
    points = {2: 1.0, 4: 2.0, 8: 1.5, 10: 1.0}
    assert len(drawn(line_chart([Series("s", points, 1)], "s"), "line")) == 1
    assert len(drawn(line_chart([Series("s", points, 1, every=2)], "s"), "line")) == 2
    alone = line_chart([Series("s", points, 1, every=1)], "s")
    assert (len(drawn(alone, "line")), len(drawn(alone, "dot"))) == (0, 4)


def test_what_is_no_number_is_not_drawn() -> None:
    values: dict[int, Any] = {1: 1.0, 2: "2.0", 3: None, 4: [1.0], 5: 10**400, 6: 2.0}
    assert data_of(line_chart([Series("s", values, 1)], "s"))["steps"] == [1, 6]
    assert line_chart([Series("s", {1: values[2]}, 1)], "s") is None


def test_a_lone_point_is_a_dot() -> None:
    assert len(drawn(line_chart([Series("s", {4: 1.0}, 1)], "s"), "dot")) == 1


def test_nothing_to_draw_is_no_chart() -> None:
    assert line_chart([Series("s", {}, 1)], "s") is None
    assert line_chart([Series("s", {1: math.nan, 2: math.inf}, 1)], "s") is None
    assert line_chart([Series("s", {1: 0.0}, 1)], "s", log=True) is None
    assert stacked_bars([Layer("a", {1: 0.0}, 1)], "s") is None
    assert stacked_bars([], "s") is None
    assert heat_table([], [1], "s") is None


def test_a_log_axis_puts_decades_at_equal_distances() -> None:
    svg = line_chart([Series("s", {1: 0.01, 2: 0.1, 3: 1.0}, 1, Style.dots)], "s", log=True)
    heights = [float(e.get("cy") or "") for e in drawn(svg, "dot")]
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.11)


def test_tick_labels_are_the_values_they_stand_at() -> None:
    svg = line_chart([Series("s", {0: 0.0, 1: 1.0}, 1)], "s")
    labels = [e.text for e in drawn(svg, "tick")]
    assert labels[:5] == ["0.00", "0.25", "0.50", "0.75", "1.00"]


def test_an_interval_is_a_bar_and_a_missing_one_is_none() -> None:
    bounds = {1: (0.1, 0.9), 2: (math.nan, math.nan)}
    svg = line_chart([Series("s", {1: 0.5, 2: 0.5}, 1, Style.marked, bounds)], "s")
    assert len(drawn(svg, "error")) == 1
    assert data_of(svg)["series"][0]["values"] == ["0.5 [0.1, 0.9]", "0.5"]


@pytest.mark.parametrize(("value", "shaded"), [(0.03, 1), (1e-7, 0)])
def test_the_reference_is_shaded_where_it_is_in_reach(value: float, shaded: int) -> None:
    series = [Series("s", {1: value, 2: value * 2}, 1)]
    svg = line_chart(series, "s", log=True, reference=Range(0.022, 0.054, "published"))
    assert len(drawn(svg, "range")) == shaded


def test_bars_stack_to_their_total() -> None:
    layers = [Layer("a", {1: 1.0, 2: 2.0}, 1), Layer("b", {1: 3.0}, 2)]
    bars = drawn(stacked_bars(layers, "s"), "bar")
    assert len(bars) == 3
    first, second, third = (float(b.get("height") or "") for b in bars)
    assert second == pytest.approx(2 * first, abs=0.15)
    assert third == pytest.approx(3 * first, abs=0.15)
    top = float(bars[2].get("y") or "") + third
    assert top == pytest.approx(float(bars[0].get("y") or ""), abs=0.15)


def test_heat_draws_visits_alone_and_marks_truncation() -> None:
    rows = [
        ("t1", {1: Cell(1.0, 0.0, "x"), 3: Cell(0.0, 0.5, NASTY)}),
        ("t2", {2: Cell(0.5, 0, "")}),
    ]
    svg = heat_table(rows, [1, 2, 3], "s")
    cells = [e for e in drawn(svg, "heat") if e.tag.endswith("rect")]
    assert [c.get("style") for c in cells] == ["--v:1.000", "--v:0.000", "--v:0.500"]
    assert len(drawn(svg, "cut")) == 1
    tips = [e.get("data-tip") for e in drawn(svg, "cell")]
    assert NASTY in tips


def test_text_from_a_run_cannot_leave_its_place() -> None:
    for svg in (
        line_chart([Series(NASTY, {1: 1.0}, 1)], NASTY, reference=Range(0.5, 2, NASTY)),
        stacked_bars([Layer(NASTY, {1: 1.0}, 1)], NASTY, NASTY),
        heat_table([(NASTY, {1: Cell(0.5, 0.5, NASTY)})], [1], NASTY),
    ):
        assert svg is not None
        assert ET.fromstring(svg).get("aria-label") == NASTY
        assert "<script" not in svg
        assert "</svg>" not in str(svg).removesuffix("</svg>")
        assert "<script>" in html.unescape(svg)


values = st.floats(allow_nan=True, allow_infinity=True, width=64)
points = st.dictionaries(st.integers(0, 300), values, max_size=12)


@settings(UNTIMED, max_examples=150)
@given(points, points, st.booleans(), st.sampled_from(list(Style)))
def test_whatever_a_run_recorded_stays_inside_the_picture(
    a: dict[int, float], b: dict[int, float], log: bool, style: Style
) -> None:
    svg = line_chart([Series("a", a, 1, style), Series("b", b, 2)], "s", log=log)
    if svg is None:
        return
    assert "nan" not in svg.split("data-chart")[0] and "inf" not in re.sub(
        "data-chart.*?>", "", svg
    )
    for dot in drawn(svg, "dot"):
        assert 0 <= float(dot.get("cx") or "") <= WIDTH
        assert 0 <= float(dot.get("cy") or "") <= HEIGHT
