"""Time of `glm52 diff` on two runs of 100 steps: python benchmarks/diff.py [REPEATS]

Writes two runs that differ in three knobs (so that the separating experiments are composed too),
then times the whole process: text, JSON and the page. Prints seconds: the median and the slowest
by the clock, and of CPU, which tells how much of it was spent waiting for a core.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.analysis.fake_run import FakeRun, byte_tokenizer  # noqa: E402

GLM52 = (sys.executable, "-m", "glm52_tbench2.cli", "diff")


def change(run: Path, changes: dict[str, str]) -> None:
    """Replaces lines of a run's config."""
    path = run / "config.yaml"
    text = path.read_text()
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path.write_text(text)


def cpu() -> float:
    """Seconds of CPU of the processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = byte_tokenizer()
        runs = [
            FakeRun(Path(folder) / name, tokenizer, steps=100, drift=drift).write(eval_every=10)
            for name, drift in (("healthy", 0.0), ("diverging", 0.04))
        ]
        change(
            runs[1],
            {
                "max_turn_tokens: 96": "max_turn_tokens: 64",
                "correction_low: 0.0": "correction_low: 0.5",
                "train: mini/mini69": "train: mini/mini8",
            },
        )
        for name, options in (
            ("text", []),
            ("json", ["--json"]),
            ("page", ["--html", f"{folder}/diff.html"]),
        ):
            times, spent = [], cpu()
            for _ in range(repeats):
                began = time.perf_counter()
                done = subprocess.run(
                    [*GLM52, *map(str, runs), *options], capture_output=True, text=True
                )
                times.append(time.perf_counter() - began)
                assert done.returncode == 1, done.stderr
            used = (cpu() - spent) / repeats
            print(f"{name:<6}{median(times):6.2f} s{max(times):8.2f} s   CPU{used:6.2f} s")


if __name__ == "__main__":
    main()
