from hypothesis import given
from hypothesis import strategies as st

from glm52_tbench2.trainer.packing import pack

LENGTHS = st.lists(st.integers(1, 300), max_size=40)
RANKS = st.integers(1, 5)
LIMITS = st.integers(1, 250)


@given(LENGTHS, RANKS, LIMITS)
def test_every_sample_is_in_exactly_one_micro_batch(lengths, num_ranks, limit):
    packed = pack(lengths, num_ranks, limit)
    assert sorted(i for rank in packed for bin_ in rank for i in bin_) == list(range(len(lengths)))


@given(LENGTHS, RANKS, LIMITS)
def test_a_micro_batch_holds_at_most_the_limit_or_one_longer_sample(lengths, num_ranks, limit):
    for rank in pack(lengths, num_ranks, limit):
        for bin_ in rank:
            assert sum(lengths[i] for i in bin_) <= limit or len(bin_) == 1


@given(LENGTHS, RANKS, LIMITS)
def test_every_rank_gets_the_same_number_and_at_least_one(lengths, num_ranks, limit):
    packed = pack(lengths, num_ranks, limit)
    assert len(packed) == num_ranks
    assert len({len(rank) for rank in packed}) == 1
    assert packed[0]


@given(LENGTHS, RANKS, LIMITS)
def test_the_load_of_two_ranks_differs_by_no_more_than_one_micro_batch(lengths, num_ranks, limit):
    packed = pack(lengths, num_ranks, limit)
    loads = [sum(lengths[i] for bin_ in rank for i in bin_) for rank in packed]
    largest = max(sum(lengths[i] for i in bin_) for rank in packed for bin_ in rank)
    assert max(loads) - min(loads) <= largest


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), RANKS)
def test_short_samples_leave_few_gaps(lengths, num_ranks):
    limit = 500
    packed = pack(lengths, num_ranks, limit)
    # Bins filled evenly to within one sample of each other need at most this many positions.
    assert len(packed[0]) <= 1 + sum(lengths) // (num_ranks * (limit - 50))


def test_a_long_sample_is_alone_and_the_others_share():
    assert pack([900, 10, 20, 30], 1, 100) == [[[0], [1, 2, 3]]]


def test_an_empty_batch_still_gives_every_rank_a_micro_batch():
    assert pack([], 2, 100) == [[[]], [[]]]
