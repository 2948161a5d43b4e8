"""The report of a run of the reference's size: python -m benchmarks.report_page [RUN]

Without RUN writes one (about 2 GB) to a temporary folder. Prints how long the page takes to make,
its size, and three times how long chromium takes from opening it to its first drawing with all
curves and maps, and from a click to the drawing of its longest conversation. The target of both is
2 s.
"""

import argparse
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from glm52_tbench2.analysis.report import render
from glm52_tbench2.analysis.run_files import RunFiles

_TELL = """<script>
const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
(async () => {
  await frame();
  const drawn = performance.now();
  const side = JSON.parse(document.getElementById("explore-data").textContent)[0];
  const size = (one) => one.textContent.length;
  const longest = [...document.querySelectorAll(`script[type="text/plain"][id^="${side.prefix}"]`)]
    .reduce((most, one) => size(one) > size(most) ? one : most);
  const home = document.querySelector("#explore-0 .conversation");
  const before = performance.now();
  await window.glm52Conversation(home, side, longest.id.slice(side.prefix.length), null);
  await frame();
  const opened = performance.now() - before;
  const tokens = home.querySelector("h3").textContent.match(/(\\d+) tokens/)[1];
  console.log(`TOLD ${drawn} ${opened} ${tokens}`);
})();
</script></body>"""


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
            first, opened, tokens = drawn(page, Path(folder))
            print(f"drawn after {first:.2f} s, {tokens:,} tokens opened in {opened:.2f} s")


def drawn(page: str, folder: Path) -> tuple[float, float, int]:
    """Seconds to the page's first drawing and to that of its longest conversation; its tokens."""
    # The page itself would run no script but its own.
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    path = folder / "report.html"
    path.write_text(page.replace("</body>", _TELL))
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    # It stays open, in real time, and says on stderr what the page logs.
    flags = [f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr"]
    command = [*browser, *flags, "--remote-debugging-port=0", path.as_uri()]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if told := re.search(r"TOLD ([\d.]+) ([\d.]+) (\d+)", line):
                os.killpg(process.pid, signal.SIGKILL)
                return float(told[1]) / 1000, float(told[2]) / 1000, int(told[3])
    raise SystemExit("chromium did not draw the page")


if __name__ == "__main__":
    main()
