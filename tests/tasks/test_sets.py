"""Task sets, and the rule that holds tasks out."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.paths import DATA
from glm52_tbench2.tasks import tbench2
from glm52_tbench2.tasks.named import named_tasks
from glm52_tbench2.tasks.sets import (
    TaskSet,
    check_disjoint,
    check_leakage,
    find_set,
    held_out_sets,
    load_set,
    render_set,
    set_names,
)
from glm52_tbench2.tasks.split import split
from glm52_tbench2.tasks.suite import asked

SUITES = {
    "mini": ("mini/mini69", "mini/mini8", "mini/eval20"),
    "tbench2": ("tbench2/train69", "tbench2/train8", "tbench2/eval20"),
}


def test_the_default_is_the_69_tasks_published_as_healthy_and_never_other_ones() -> None:
    data = compose([]).data
    pinned = {
        "tbench2/train69": "61a6c4c9d601136e",
        "tbench2/train8": "168e1d35fa50a698",
        "tbench2/eval20": "54f26760531f2b0e",
    }
    assert (data.train, data.eval) == ("tbench2/train69", "tbench2/eval20")
    assert len(load_set(data.train).ids) == 69
    assert {name: load_set(name).sha256[:16] for name in pinned} == pinned


@pytest.mark.parametrize("name", set_names())
def test_no_set_holds_a_task_that_its_suite_holds_out(name: str) -> None:
    task_set = load_set(name)
    for held_out in held_out_sets(task_set.suite):
        if held_out != task_set:
            check_disjoint(task_set, held_out)


def test_every_suite_holds_tasks_out_and_no_two_of_mini_ask_the_same() -> None:
    assert [one.name for suite in SUITES for one in held_out_sets(suite)] == [
        "mini/eval20",
        "tbench2/eval20",
    ]
    train, held_out = named_tasks("mini/mini69"), named_tasks("mini/eval20")
    check_leakage(train, held_out)
    assert len({asked(task) for task in train + held_out}) == 89


def test_a_held_out_task_under_another_name_is_found() -> None:
    train, held_out = named_tasks("mini/mini8"), named_tasks("mini/eval20")
    renamed = replace(held_out[3], id="innocent")
    with pytest.raises(UserError, match=f"innocent of data.train is the .* {held_out[3].id}"):
        check_leakage([*train, renamed], held_out)


def test_a_set_may_be_written_without_its_suite() -> None:
    assert find_set("train8") == load_set("tbench2/train8")
    with pytest.raises(UserError, match=r"several suites; write mini/eval20 or tbench2/eval20"):
        find_set("eval20")


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_is_69_and_20_with_none_in_common(suite: str) -> None:
    train, small, held_out = (load_set(name) for name in SUITES[suite])
    assert (len(train.ids), len(small.ids), len(held_out.ids)) == (69, 8, 20)
    assert small.ids == train.ids[:8]
    check_disjoint(train, held_out)


def test_the_committed_sets_of_terminal_bench_are_what_the_rule_gives() -> None:
    folder = DATA / "tbench2" / "sets"
    assert {path.name: path.read_text() for path in folder.iterdir()} == tbench2.sets()


def test_the_held_out_tasks_of_terminal_bench_keep_the_mix() -> None:
    known = tbench2.known_tasks()
    # 4 easy, 55 medium and 30 hard of 89, scaled to 20: 0.9, 12.4 and 6.7.
    held_out = load_set("tbench2/eval20").ids
    assert Counter(known[task_id].difficulty for task_id in held_out) == {
        "easy": 1,
        "medium": 12,
        "hard": 7,
    }
    assert set(load_set("tbench2/train69").ids) | set(held_out) == set(known)


@settings(deadline=None)
@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=6), st.sampled_from("xyz"), min_size=1),
    st.data(),
)
def test_split_is_proportional_whole_and_blind_to_order(
    strata: dict[str, str], data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, len(strata)))
    train, held_out = split(strata, count)
    assert len(held_out) == count
    assert sorted(train + held_out) == sorted(strata)
    for stratum, size in Counter(strata.values()).items():
        share = count * size / len(strata)
        assert abs(sum(strata[task_id] == stratum for task_id in held_out) - share) < 1
    shuffled = data.draw(st.permutations(sorted(strata)))
    assert split({task_id: strata[task_id] for task_id in shuffled}, count) == (train, held_out)


def test_the_hash_is_of_the_ids_alone() -> None:
    a = TaskSet("mini/a", "mini", ("one", "two"), "")
    assert a.sha256 == TaskSet("mini/b", "mini", ("one", "two"), "why").sha256
    assert a.sha256 != TaskSet("mini/a", "mini", ("one", "three"), "").sha256
    assert a.sha256 != TaskSet("mini/a", "mini", ("onet", "wo"), "").sha256


def test_sets_that_overlap_are_refused_by_name() -> None:
    train, small, held_out = (load_set(name) for name in SUITES["mini"])
    with pytest.raises(UserError, match=r"mini/mini69 and data.eval=mini/mini8 share 8 tasks"):
        check_disjoint(train, small)
    with pytest.raises(UserError, match="different suites"):
        check_disjoint(load_set("tbench2/train69"), held_out)


def test_an_unknown_set_gets_the_nearest_or_all() -> None:
    with pytest.raises(UserError, match="did you mean mini/mini69"):
        load_set("mini/mini96")
    with pytest.raises(UserError, match=r"write one of mini/eval20, .*tbench2/train69"):
        load_set("0")


def test_a_written_set_reads_back(tmp_path: Path) -> None:
    folder = tmp_path / "mini" / "sets"
    folder.mkdir(parents=True)
    doc = "Three tasks: " + "a long reason, " * 12
    (folder / "three.yaml").write_text(render_set("mini", doc, ["b", "a", "c"]))
    assert set_names(tmp_path) == ["mini/three"]
    assert load_set("mini/three", tmp_path) == TaskSet(
        "mini/three", "mini", ("a", "b", "c"), doc.strip()
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("suite: mini\ntasks: [b, a]\n", "must be sorted"),
        ("suite: mini\ntasks: [a, b, a, b, c]\n", "names a, b more than once"),
        ("suite: mini\ntasks: []\n", "is not a task set"),
        ("suite: mini\ntasks: [1, 2]\n", "is not a task set"),
        ("suite: mini\ntasks: abc\n", "is not a task set"),
        ("suite: other\ntasks: [a]\n", "is not a task set"),
        ("suite: mini\nheld_out: maybe\ntasks: [a]\n", "is not a task set"),
        ("tasks: [a\n", "is not a task set"),
        ("just words\n", "is not a task set"),
        ("", "is not a task set"),
    ],
)
def test_a_broken_manifest_gets_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    folder = tmp_path / "mini" / "sets"
    folder.mkdir(parents=True)
    (folder / "bad.yaml").write_text(text)
    with pytest.raises(UserError, match=said):
        load_set("mini/bad", tmp_path)
