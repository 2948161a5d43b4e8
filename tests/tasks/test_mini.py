"""The generated suite: the same bytes always, learnable in size, and nothing held out leaks."""

import re
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glm52_tbench2.config.paths import DATA
from glm52_tbench2.tasks.mini import (
    FAMILIES,
    WORDS,
    Instance,
    build,
    committed,
    fresh,
    held_out_keys,
    instance_key,
)
from glm52_tbench2.tasks.sets import load_set

NUM_TURNS = {"easy": {1}, "medium": {2}, "hard": {3, 4}}


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def pieces(text: str) -> int:
    """Words, numbers and signs: what a small tokenizer makes of it, about."""
    return len(re.findall(r"[A-Za-z]+|[0-9]|[^\w\s]", text))


def test_the_committed_suite_is_what_the_code_builds(tmp_path: Path) -> None:
    build(tmp_path)
    built, there = tree(tmp_path), tree(DATA / "mini")
    assert sorted(built) == sorted(there)
    assert [path for path in built if built[path] != there[path]] == []


def test_the_suite_has_89_tasks_of_every_family_and_difficulty() -> None:
    tasks = committed().values()
    assert len(tasks) == 89
    assert {task.family for task in tasks} == set(FAMILIES)
    assert len(FAMILIES) >= 15
    counts = Counter(task.difficulty for task in tasks)
    assert min(counts[difficulty] for difficulty in NUM_TURNS) >= 20


def test_held_out_tasks_share_families_but_no_parameters_with_the_trained() -> None:
    train = [committed()[task_id] for task_id in load_set("mini/mini69").ids]
    held_out = [committed()[task_id] for task_id in load_set("mini/eval20").ids]
    assert {task.family for task in held_out} <= {task.family for task in train}
    assert len({instance_key(task) for task in train + held_out}) == 89
    assert {instance_key(task) for task in held_out} == held_out_keys()
    assert {task.difficulty for task in held_out} == set(NUM_TURNS)


@pytest.mark.parametrize("family", sorted(FAMILIES))
@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32))
def test_every_instance_is_small_and_follows_its_seed(family: str, seed: int) -> None:
    task = FAMILIES[family](Random(seed))
    assert task == FAMILIES[family](Random(seed))
    assert len(task.turns) in NUM_TURNS[task.difficulty]
    assert task.wrong and task.wrong != task.turns
    assert len(task.instruction.split()) <= 40
    assert pieces(task.instruction) <= 60
    assert all(pieces(command) <= 25 for command in task.turns + task.wrong)
    assert all(pieces(text) <= 60 for path, text in task.files.items() if "md5" not in path)
    assert not any("\n" in command for command in task.turns + task.wrong)
    assert not re.search(r"\b(awk|python3?|jq|perl)\b", " ".join([*task.turns, task.check]))


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_family_has_many_instances_and_several_wordings(family: str) -> None:
    rng = Random(family)
    tasks = [FAMILIES[family](rng) for _ in range(200)]
    assert len({instance_key(task) for task in tasks}) > 90
    generic = {mask(task) for task in tasks}
    assert len(generic) >= 2


def mask(task: Instance) -> str:
    return re.sub("|".join(WORDS), "*", task.instruction)


def test_fresh_tasks_are_never_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    held_out = committed()[load_set("mini/eval20").ids[0]]
    # A family that gives the held-out task every other time.
    sample = FAMILIES[held_out.family]
    draws: list[Instance] = []

    def sometimes(rng: Random) -> Instance:
        draws.append(sample(rng) if len(draws) % 2 else held_out)
        return draws[-1]

    monkeypatch.setitem(FAMILIES, held_out.family, sometimes)
    rng = Random(0)
    tasks = [fresh(rng, held_out.family) for _ in range(5)]
    assert held_out in draws
    assert not {instance_key(task) for task in tasks} & held_out_keys()


def test_fresh_draws_from_every_family() -> None:
    rng = Random(0)
    assert {fresh(rng).family for _ in range(600)} == set(FAMILIES)


def test_words_are_distinct_lowercase_and_never_part_of_another() -> None:
    assert len(WORDS) == len(set(WORDS)) == 120
    assert all(re.fullmatch("[a-z]{4,8}", word) for word in WORDS)
    assert not [(a, b) for a in WORDS for b in WORDS if a != b and a in b]
