"""Which groups a batch keeps, by the names a config lists in rollout.filters."""

from collections.abc import Callable, Sequence

import numpy as np

from ..config.errors import UserError
from .batch import Sample
from .outcome import has_verdict

MIN_STD = 1e-8

GroupFilter = Callable[[Sequence[Sample]], bool]


def check_no_aborted(group: Sequence[Sample]) -> bool:
    """Every sample has a verdict. One without is replaced first; this is for one that cannot be."""
    return all(has_verdict(sample.end_reason) for sample in group)


def check_reward_nonzero_std(group: Sequence[Sample]) -> bool:
    """The rewards, penalties included, differ: the group carries a signal."""
    rewards = [s.reward + s.penalty for s in group if has_verdict(s.end_reason)]
    return len(rewards) > 1 and float(np.std(rewards, ddof=1)) > MIN_STD


FILTERS: dict[str, GroupFilter] = {
    check.__name__: check for check in (check_no_aborted, check_reward_nonzero_std)
}


def named(names: Sequence[str]) -> dict[str, GroupFilter]:
    """The filters of those names, in order. Raises UserError for an unknown one."""
    for name in names:
        if name not in FILTERS:
            raise UserError(
                f"rollout.filters names {name!r}, which is no filter; write one of "
                f"{', '.join(FILTERS)}."
            )
    return {name: FILTERS[name] for name in names}


def dropped_by(group: Sequence[Sample], filters: dict[str, GroupFilter]) -> str | None:
    """Name of the first filter that refuses the group; None: it is kept."""
    return next((name for name, keep in filters.items() if not keep(group)), None)
