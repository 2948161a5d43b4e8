"""Which tasks are held out: a written rule, so that nobody chose them."""

import hashlib
from collections import defaultdict
from collections.abc import Mapping

SALT = "glm52_tbench2:eval:"


def split(strata: Mapping[str, str], num_held_out: int) -> tuple[list[str], list[str]]:
    """Splits task ids into (train, held out), both sorted, keeping the mix of strata.

    `strata` maps each task id to its stratum (a difficulty, a family). Each stratum holds out its
    proportional share, rounded by the largest remainder so that the shares add up to
    `num_held_out`; within a stratum the ids with the smallest sha256(SALT + id) go.
    """
    members: dict[str, list[str]] = defaultdict(list)
    for task_id, stratum in strata.items():
        members[stratum].append(task_id)
    # In units of 1 / len(strata), so that the remainders are exact.
    shares = {name: divmod(num_held_out * len(ids), len(strata)) for name, ids in members.items()}
    counts = {name: whole for name, (whole, _) in shares.items()}
    by_remainder = sorted(shares, key=lambda name: (-shares[name][1], name))
    for name in by_remainder[: num_held_out - sum(counts.values())]:
        counts[name] += 1
    held_out: set[str] = set()
    for name, ids in members.items():
        held_out.update(sorted(ids, key=_rank)[: counts[name]])
    return sorted(set(strata) - held_out), sorted(held_out)


def _rank(task_id: str) -> str:
    return hashlib.sha256((SALT + task_id).encode()).hexdigest()
