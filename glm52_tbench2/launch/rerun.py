"""What `glm52 rerun` does: the same run again, in a folder of its own beside the first."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config.compose import load_run_config
from ..config.errors import UserError
from ..config.identity import load_identity
from ..config.paths import command, short
from .run_folder import identity_now
from .train import train


def rerun(run_dir: Path, allow: bool) -> int:
    """Runs RUN/config.yaml from this checkout in a new folder; returns as :func:`train`.

    `allow`: also when it is not the same run any more; the differences are then kept with the new
    run's origin. Raises UserError when it is no run folder, or with what differs.
    """
    run_dir = run_dir.resolve()
    config = replace(load_run_config(run_dir), runs_dir=str(run_dir.parent))
    started, history = load_identity(run_dir)
    differences = started.differences(identity_now(config))
    differences += [_went_on(entry) for entry in history]
    if differences and not allow:
        listed = "\n".join(f"  {line}" for line in differences)
        raise UserError(
            f"{short(run_dir)} cannot be repeated as it was. What differs:\n"
            f"{listed}\nUndo that, or run it as it is now with: "
            f"{command('rerun', run_dir, '--allow')}"
        )
    origin: dict[str, Any] = {"rerun_of": run_dir.name}
    if differences:
        origin["differences"] = differences
    return train(config, origin)


def _went_on(entry: dict[str, Any]) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["time"]))
    how = "; ".join(entry["differences"]) or "as it was started"
    return f"resume of {when}, after step {entry.get('after_step', 'unknown')}: {how}"
