"""The tracker role: ``python -m glm52_tbench2.analysis.track --run RUN``.

Follows metrics.jsonl into wandb. It keeps no state: a restarted tracker reads the file from its
first line, and wandb's own step is the line's number, so an online run takes up where it was and
each offline folder is whole by itself (`wandb sync RUN/wandb/latest-run` sends the newest).
"""

import argparse
import hashlib
import json
import re
import signal
import sys
import threading
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Any

from ..config import load_run_config
from ..config.compose import leaves
from ..config.errors import UserError
from ..config.metrics_log import METRICS_FILE
from ..config.schema import RunConfig, WandbMode
from .run_files import FINISHED_FILE, RunFiles
from .sweep_files import sweep_of

POLL_S = 1.0
# What a run is known by lies in its config and identity. wandb would add the host, the command
# line, the console and the git remote, which may hold names and secrets that are nobody's business.
_SETTINGS: dict[str, Any] = {
    "console": "off",
    "disable_git": True,
    "host": "undisclosed",
    "save_code": False,
    "silent": True,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
    # Every role of a run starts at once, and wandb's service with them.
    "x_service_wait": 120.0,
}

_ID_CHARS = 64
_MADE = ("revision", "changes", "origin")


def run_id(run_dir: Path) -> str:
    """The wandb id of a run: its folder's name, in the characters that wandb takes.

    A sweep's name comes before that of its point, which other sweeps have too.
    """
    path = run_dir.resolve()
    whole = f"{sweep_of(path) or ''}-{path.name}".lstrip("-")
    name = re.sub(r"[^\w.-]", "-", whole)
    if len(name) <= _ID_CHARS:
        return name
    digest = hashlib.sha256(whole.encode()).hexdigest()[:8]
    return f"{name[: _ID_CHARS - 9]}-{digest}"


def track(run_dir: Path, stopped: threading.Event) -> None:
    """Follows a run until RUN/finished is there and all is read, or `stopped` is set.

    Raises UserError when wandb cannot be used as the config says.
    """
    config = load_run_config(run_dir)
    if config.tracking.wandb is WandbMode.disabled:
        return
    tracked = _start(run_dir, config)
    # Online, a resumed run already has the lines before its starting step.
    seen = tracked.starting_step
    code = 0
    try:
        for number, record in follow(run_dir / METRICS_FILE, run_dir / FINISHED_FILE, stopped):
            if number >= seen:
                tracked.log({**_named(record), "step": record["step"]}, step=number)
        code = 0 if (run_dir / FINISHED_FILE).exists() else 143
    finally:
        tracked.finish(exit_code=code)


def follow(
    path: Path, finished: Path, stopped: threading.Event
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number, 0-based, and record of each whole line, waiting for more at the end.

    Ends when `finished` exists and all is read, or when `stopped` is set. A line that is no record
    (cut by a kill) is told on stderr and left out; it keeps its number.
    """
    number = offset = 0
    while True:
        last = finished.exists() or stopped.is_set()  # before reading: nothing comes after it
        text = b""
        if path.exists():
            with path.open("rb") as file:
                file.seek(offset)
                text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        offset += len(whole)
        for line in whole.splitlines():
            record = _record(line)
            if record is None:
                print(f"{path}: line {number + 1} is no record and left out", file=sys.stderr)
            else:
                yield number, record
            number += 1
        if last:
            return
        stopped.wait(POLL_S)


def _named(record: dict[str, Any]) -> dict[str, float]:
    """The metrics, with the version in the name where it is not 1: wandb draws by name."""
    versions = record.get("definitions", {})
    return {
        f"{name}@{versions[name]}" if name in versions else name: value
        for name, value in record["metrics"].items()
    }


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    whole = isinstance(record, dict) and {"step", "metrics"} <= record.keys()
    return record if whole else None


def _start(run_dir: Path, config: RunConfig) -> Any:
    import wandb
    from wandb.errors import AuthenticationError, UsageError

    identity = dict(RunFiles(run_dir, config).identity)
    identity.pop("config", None)  # said by the config itself
    # The rest is long, or of the machine, and lies in the run folder.
    made = {k: v for k, v in (identity.get("made") or {}).items() if k in _MADE}
    try:
        tracked = wandb.init(
            dir=str(run_dir),
            id=run_id(run_dir),
            name=run_dir.resolve().name,
            group=sweep_of(run_dir.resolve()),
            project=config.tracking.project,
            entity=config.tracking.entity,
            mode=config.tracking.wandb.value,
            resume="allow" if config.tracking.wandb is WandbMode.online else None,
            config={**_knobs(config), "identity": {**identity, "made": made}},
            settings=wandb.Settings(**_SETTINGS),
        )
    except (UsageError, AuthenticationError) as error:
        raise UserError(
            f"wandb cannot be used with tracking.wandb={config.tracking.wandb.value} ({error}); "
            "set WANDB_API_KEY in the environment, or write tracking.wandb=offline."
        ) from error
    tracked.define_metric("step")
    tracked.define_metric("*", step_metric="step")
    return tracked


def _knobs(config: RunConfig) -> dict[str, Any]:
    """Dotted name -> value of every knob, enums by their name."""
    return {
        name: value.name if isinstance(value, Enum) else value
        for name, value in leaves(config).items()
    }


def main() -> int:
    """Exit code: 0 the run finished or is not tracked, 2 bad input, 143 stopped and flushed.

    Anything else, as wandb's server not answering, is worth another try.
    """
    parser = argparse.ArgumentParser(prog="python -m glm52_tbench2.analysis.track")
    parser.add_argument("--run", type=Path, required=True, help="run folder")
    run_dir = parser.parse_args().run
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        track(run_dir, stopped)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 128 + signal.SIGTERM if stopped.is_set() else 0


if __name__ == "__main__":
    sys.exit(main())
