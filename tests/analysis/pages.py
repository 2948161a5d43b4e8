"""Report pages read as text, and in a real browser."""

import html
import re
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from glm52_tbench2.analysis.report import write_report
from glm52_tbench2.analysis.run_files import RunFiles

from .fake_run import FakeRun

DEADLINE_S = 120


def page_of(run_dir: Path) -> str:
    return write_report(run_dir).read_text()


def section(page: str, name: str) -> str:
    found = re.search(rf'<section id="{name}">(.*?)</section>', page, re.S)
    assert found
    return found[1]


def notes(page: str) -> str:
    found = re.search(r'id="notes">(.*?)</section>', page, re.S)
    return html.unescape(found[1]) if found else ""


def in_browser(page: Path, *flags: str) -> tuple[str, str]:
    """The page's elements after its script has run, and what the console said."""
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [
                "chromium",
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                f"--user-data-dir={profile}",
                "--enable-logging=stderr",
                *flags,
                "--dump-dom",
                page.as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return done.stdout, "\n".join(console)


def driven(page: Path, script: str, folder: Path) -> str:
    """What `script` leaves in the page, as text: its own test driver, which the page itself would
    not run."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    driver = (
        "const until = async (ready) => { while (!ready()) await new Promise((r) => "
        "setTimeout(r, 20)); return ready(); };\n"
        f"(async () => {{ {script} }})().then((said) => {{ const e = document.createElement('pre');"
        "e.id = 'said'; e.textContent = JSON.stringify(said); document.body.append(e); },"
        "(error) => { document.title = 'FAILED ' + error; });"
    )
    copy = folder / "driven.html"
    copy.write_text(text.replace("</body>", f"<script>{driver}</script></body>"))
    elements, _ = in_browser(copy, "--virtual-time-budget=300000")
    found = re.search(r'<pre id="said">(.*?)</pre>', elements, re.S)
    assert found, re.findall("<title>FAILED.*?</title>", elements)
    return html.unescape(found[1])


OPEN = """
  document.querySelector('#explore-SIDE .map .spot[data-at]')
    .dispatchEvent(new MouseEvent('click', {bubbles: true}));
  const button = await until(() => document.querySelector('#explore-SIDE .samples button'));
  button.click();
  const view = document.querySelector('#explore-SIDE .conversation');
  await until(() => view.querySelector('.own'));
"""


def opened(side: int) -> str:
    return OPEN.replace("SIDE", str(side))


def trained(run_dir: Path, tokenizer: Tokenizer, steps: int = 3) -> Path:
    """A finished run whose steps the trainer has scored."""
    FakeRun(run_dir, tokenizer, steps=steps).write()
    run = RunFiles.open(run_dir)
    for step in run.steps("rollouts"):
        rows = run.columns("rollouts", step, ("sample_id", "rollout_logprobs", "loss_mask"))
        scored = [
            np.where(mask, engine - np.float32(0.125), np.float32(0))
            for engine, mask in zip(rows["rollout_logprobs"], rows["loss_mask"], strict=True)
        ]
        (run_dir / "train").mkdir(exist_ok=True)
        name = f"step_{step:06d}.parquet"
        about = pq.read_schema(run_dir / "rollouts" / name).metadata
        table = pa.table({"sample_id": rows["sample_id"], "trainer_logprobs": scored})
        pq.write_table(table.replace_schema_metadata(about), run_dir / "train" / name)
    return run_dir
