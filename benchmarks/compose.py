"""Time to a composed config: python benchmarks/compose.py

Every experiment one after another in a fresh process, imports included; one alone; glm52 --help.
"""

import subprocess
import sys
import time

from glm52_tbench2.config.paths import CONF

COMPOSE = "import sys; from glm52_tbench2.config.compose import compose\n"
EXPERIMENTS = [path.stem for path in sorted((CONF / "experiment").glob("*.yaml"))]
REPEATS = 5


def main() -> None:
    every = "".join(f"compose(['experiment={name}'])\n" for name in EXPERIMENTS)
    timed(f"all {len(EXPERIMENTS)} experiments", ["-c", COMPOSE + every])
    timed("one experiment", ["-c", COMPOSE + "compose(['experiment=smoke'])"])
    timed("glm52 --help", ["-m", "glm52_tbench2.cli", "--help"])


def timed(name: str, arguments: list[str]) -> None:
    """Prints the best and the median of a few runs."""
    taken = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        taken.append(time.perf_counter() - began)
    taken.sort()
    print(f"{name:<24}best {taken[0]:.2f} s   median {taken[REPEATS // 2]:.2f} s")


if __name__ == "__main__":
    main()
