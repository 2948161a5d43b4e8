"""Faults on real runs, and whether each comes out whole.

    python -m benchmarks.chaos [--seed 1] [--steps 12] [--only kills,disk] [KNOB=VALUE ...]

Each kind of fault strikes a small fully asynchronous run of its own, at moments drawn from the
seed. Exit code 1 when something does not hold; the runs are then kept. Needs root (for the small
disk) and gcc (for the clock and the slow disk); minutes a run.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .scenarios import SCENARIOS


def main() -> int:
    """The exit code."""
    usage = __doc__.split("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos", description=usage[0], epilog=usage[2]
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=12, help="of each run")
    parser.add_argument("--only", default=",".join(SCENARIOS), help="kinds of faults (%(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the runs in any case")
    parser.add_argument("overrides", nargs="*", metavar="KNOB=VALUE")
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    if unknown := set(names) - set(SCENARIOS):
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    console = Console(soft_wrap=True, highlight=False)
    table = Table("fault", "what must hold", "", title=f"Chaos, seed {arguments.seed}")
    folder, bad = Path(tempfile.mkdtemp(prefix="chaos-")), 0
    for name in names:
        began = time.monotonic()

        def tell(text: str, name: str = name, began: float = began) -> None:
            console.print(escape(f"{name:9} {time.monotonic() - began:5.0f} s  {text}"))

        try:
            found = SCENARIOS[name](
                folder / name, arguments.seed, arguments.steps, arguments.overrides, tell
            )
        except AssertionError as error:
            table.add_row(name, "the run gets there", f"[red]{escape(str(error))}")
            bad += 1
            continue
        for check in found:
            bad += bool(check.wrong)
            told = f"[red]{escape(check.wrong)}" if check.wrong else "[green]holds"
            table.add_row(name, check.name, told)
    console.print(table)
    if bad or arguments.keep:
        console.print(f"The runs are in {folder}")
    else:
        shutil.rmtree(folder)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
