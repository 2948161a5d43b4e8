"""metrics.jsonl: one line a step and source, appended by the process that computed it."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path


def append(run_dir: Path, step: int, source: str, metrics: Mapping[str, float]) -> None:
    """Appends one record, {"step", "source", "time" (unix seconds), "metrics"}.

    A single O_APPEND write, so that records of several processes never interleave.
    After a resume a (step, source) may be there twice: the last one counts.
    """
    record = {"step": step, "source": source, "time": time.time(), "metrics": dict(metrics)}
    line = (json.dumps(record) + "\n").encode()
    fd = os.open(run_dir / "metrics.jsonl", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":  # a kill cut the last line short
            line = b"\n" + line
        os.write(fd, line)
    finally:
        os.close(fd)


def read(run_dir: Path) -> dict[str, dict[int, dict[str, float]]]:
    """source -> step -> metrics, the last record of each; a half-written last line is left out."""
    path = run_dir / "metrics.jsonl"
    found: dict[str, dict[int, dict[str, float]]] = {}
    if not path.exists():
        return found
    for line in path.read_text(errors="replace").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        found.setdefault(record["source"], {})[record["step"]] = record["metrics"]
    return found
