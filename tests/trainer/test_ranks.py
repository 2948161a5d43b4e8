"""How the trainer's ranks find each other."""


def test_a_rank_waits_for_another_as_long_as_a_step_may_take(ranks, run):
    """A first weight push at full size takes many minutes, in which ranks wait on the store."""
    assert ranks(run, "store_timeout") == [7200.0]
