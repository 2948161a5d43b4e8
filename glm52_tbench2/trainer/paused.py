"""A paused run: while RUN/paused is there, no batch is trained."""

from pathlib import Path

from glm52_tbench2.config.paths import short

PAUSED = "paused"


def paused(run_dir: Path) -> str:
    """How a paused run goes on; "" of one that is not paused."""
    path = run_dir / PAUSED
    return f"remove {short(path)} to go on" if path.exists() else ""
