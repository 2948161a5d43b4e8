"""How long `glm52 plan` takes: counting in the trainer's model, and a search.

    python benchmarks/plan.py [OVERRIDE ...]

Counts the parameters of each pipeline stage in a process of its own, as the command does, then
searches all layouts of the same nodes. Prints seconds, and the figures they give.
"""

import sys
from time import perf_counter

from glm52_tbench2.config.compose import compose
from glm52_tbench2.launch.plan import parameters
from glm52_tbench2.launch.plan.count import count
from glm52_tbench2.launch.plan.search import search
from glm52_tbench2.launch.plan.units import number


def main() -> None:
    config = compose(sys.argv[1:])
    started = perf_counter()
    (held,) = count([config])
    counted = perf_counter()
    layouts, _ = search(config)
    searched = perf_counter()
    total = parameters.total(held, config.parallel)
    fits = sum(one.problem is None for one in layouts)
    print(f"count   {counted - started:6.1f} s  {len(held)} stages, {number(total)} parameters")
    print(f"search  {searched - counted:6.1f} s  {len(layouts)} layouts, {fits} fit")


if __name__ == "__main__":
    main()
