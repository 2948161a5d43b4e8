from collections import Counter
from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st

from glm52_tbench2.rollout.schedule import draws, sampling_seed

TASKS = [f"task-{i:02d}" for i in range(69)]


def share(tasks, seed, step, per_step, repeats=1):
    return list(islice(draws(tasks, seed, step, per_step, repeats), per_step))


@given(st.integers(0, 2**31), st.integers(1, 20), st.integers(1, 12))
def test_an_epoch_visits_every_task_once(seed, size, per_step):
    tasks = TASKS[:size]
    stream = [t for step in range(1, size + 1) for t in share(tasks, seed, step, per_step)]
    for epoch in range(per_step):
        assert sorted(stream[epoch * size : (epoch + 1) * size]) == tasks


def test_epochs_are_shuffled_anew():
    first, second = share(TASKS, 1, 1, 69), share(TASKS, 1, 2, 69)
    assert first != second != TASKS
    assert share(TASKS, 2, 1, 69) != first


def test_the_order_in_the_manifest_does_not_matter():
    assert share(TASKS, 1, 3, 8) == share(TASKS[::-1], 1, 3, 8)


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 12))
def test_refills_take_tasks_the_step_has_not_drawn_before_any_comes_twice(step, per_step):
    stream = draws(TASKS, 1, step, per_step, 1)
    first = list(islice(stream, per_step))
    refills = list(islice(stream, 69 - len(set(first))))
    assert sorted(set(first) | set(refills)) == TASKS
    assert Counter(islice(stream, 138)) == Counter(TASKS * 2)


def test_a_draw_may_give_a_task_several_groups():
    steps = [share(TASKS[:8], 1, step, 8, 8) for step in range(1, 9)]
    assert all(len(set(tasks)) == 1 for tasks in steps), "a step trains one task"
    assert sorted(tasks[0] for tasks in steps) == TASKS[:8], "an epoch visits each once"
    assert share(TASKS, 1, 1, 4, 2) == [task for task in share(TASKS, 1, 1, 2) for _ in range(2)]


def test_draws_of_a_step_are_always_the_same():
    """Written out, so that a change of the order, which would break every resumed run, is seen."""
    assert share(["a", "b", "c", "d"], 7, 1, 6) == ["d", "b", "a", "c", "b", "a"]
    assert sampling_seed(7, 1, 0, 0, 0) == 1694637002


def test_every_place_has_its_own_seed():
    places = [(s, g, i, t) for s in range(5) for g in range(8) for i in range(8) for t in range(9)]
    seeds = {sampling_seed(1, *place) for place in places}
    assert len(seeds) == len(places)
    assert all(0 <= seed < 2**31 for seed in seeds)
