import numpy as np
import pytest


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_context_parallel_ranks_share_every_sequence_and_its_work_alike(ranks, run, num_ranks):
    lengths = [2 * num_ranks * n for n in (1, 7, 20)]
    (found,) = ranks(run, "shares", lengths, num_ranks)
    tokens = np.concatenate([mine for mine, _, _ in found])
    for mine, order, pairs in found:
        np.testing.assert_array_equal(tokens[order], np.arange(sum(lengths)))
        assert len(mine) == sum(lengths) // num_ranks
        assert pairs == sum(n * (n + 1) // 2 for n in lengths) // num_ranks
