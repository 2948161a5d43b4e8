"""The report of a run of the reference's size: python -m benchmarks.report_page [RUN]

Without RUN writes one (about 2 GB) to a temporary folder. Prints how long the page takes to make,
its size, and three times how long chromium takes from opening it to its first drawing with all
curves and maps. The target of the last is 2 s.
"""

import argparse
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from glm52_tbench2.analysis.report import render
from glm52_tbench2.analysis.run_files import RunFiles

_TELL = (
    "<script>requestAnimationFrame(() => setTimeout(() => {"
    "document.documentElement.dataset.drawn = performance.now();"
    "document.querySelectorAll('script').forEach((one) => one.remove()) }, 0))</script></body>"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", nargs="?", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = given.run or Path(folder) / "run"
        if given.run is None:
            subprocess.run([sys.executable, "-m", "benchmarks.synthetic_run", str(run)], check=True)
        started = perf_counter()
        page = render(RunFiles.open(run))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"made in {perf_counter() - started:.1f} s, {len(page) / 1e6:.1f} MB; {peak:.2f} GiB")
        for _ in range(3):
            print(f"drawn after {drawn(page, Path(folder)):.2f} s")


def drawn(page: str, folder: Path) -> float:
    """Seconds from opening the page to its first drawing."""
    # The page itself would run no script but its own.
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    path = folder / "report.html"
    path.write_text(page.replace("</body>", _TELL))
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    flags = [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=3000", "--dump-dom"]
    done = subprocess.run([*browser, *flags, path.as_uri()], capture_output=True, text=True)
    found = re.search(r'data-drawn="([\d.]+)"', done.stdout)
    if found is None:
        raise SystemExit(f"chromium did not draw the page: {done.stderr[-500:]}")
    return float(found[1]) / 1000


if __name__ == "__main__":
    main()
