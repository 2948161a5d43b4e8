"""A folder of large files that is made file by file, and gone on with after a kill.

It is made as NAME.partial, which takes its name when it is whole. Each finished file has a record
with its sha256 there; one whose content is no longer that is made again.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import IO, Any

from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.files import atomic_write_bytes, sync

_RECORDS, _PLAN = ".records", "plan.json"
_SHOW_S = 5.0


class Hashed:
    """A file that is written from start to end, with the sha256 of what is in it."""

    def __init__(self, file: IO[bytes], progress: "Progress") -> None:
        self._file, self._progress = file, progress
        self.sha256, self.size = hashlib.sha256(), 0

    def write(self, data: Any) -> int:
        """Appends bytes."""
        self._file.write(data)
        self.sha256.update(data)
        self.size += len(data)
        self._progress.add(len(data))
        return len(data)

    def flush(self) -> None:
        """torch.save asks for it; the file is synced once, at its end."""


class Progress:
    """Bytes done of those to do, printed every few seconds."""

    def __init__(self, what: str, total: int) -> None:
        """`total`: bytes."""
        self._what, self._total, self._done = what, total, 0
        self._began = self._shown = monotonic()
        self._skipped = 0

    def skip(self, count: int) -> None:
        """So many bytes need not be done."""
        self._total -= count
        self._skipped += count

    def add(self, count: int) -> None:
        """So many bytes more are done."""
        self._done += count
        if monotonic() > self._shown + _SHOW_S:
            self.show()

    def show(self) -> None:
        """Prints a line."""
        self._shown = monotonic()
        seconds = max(self._shown - self._began, 1e-6)
        rate = self._done / seconds
        left = max(0, self._total - self._done) / rate if rate else 0.0
        before = f", {self._skipped / 1e9:.1f} GB were there" if self._skipped else ""
        print(
            f"{self._what}: {self._done / 1e9:.1f} of {self._total / 1e9:.1f} GB in {seconds:.0f} "
            f"s, {rate / 1e9:.2f} GB/s, {left / 60:.0f} min left{before}",
            flush=True,
        )


def refuse_existing(target: Path) -> None:
    """Raises UserError when there is something by that name."""
    if target.exists():
        raise UserError(f"{target} is there already; name another folder or remove it.")


class Work:
    """The folder `target` in the making."""

    def __init__(self, target: Path, plan: dict[str, Any], total: int, verb: str) -> None:
        """Begins, or goes on with what was begun by the same `plan`; `total`: bytes to be written.

        Raises UserError when `target` is there, what was begun is something else, or the disk has
        too little room.
        """
        self.target, self.folder = target, target.with_name(f"{target.name}.partial")
        refuse_existing(target)
        self.progress = Progress(verb, total)
        path = self.folder / _PLAN
        if path.exists() and json.loads(path.read_bytes()) != json.loads(json.dumps(plan)):
            raise UserError(
                f"{self.folder} was begun with other weights or another config; remove it, or name "
                "another folder."
            )
        (self.folder / _RECORDS).mkdir(parents=True, exist_ok=True)
        found = (self.folder / _RECORDS).glob("*.json")
        self._records: dict[str, dict[str, Any]] = {
            path.name.removesuffix(".json"): json.loads(path.read_bytes()) for path in found
        }
        done = sum(record["size"] for record in self._records.values())
        free, needed = shutil.disk_usage(self.folder).free, total - done
        if free < needed:
            raise UserError(
                f"{self.folder.parent} has {free / 1e9:.1f} GB free, but {needed / 1e9:.1f} GB are "
                "to be written; free some, or name a folder on another disk."
            )
        if not path.exists():
            atomic_write_bytes(path, json.dumps(plan).encode())

    def done(self, name: str) -> Any | None:
        """What the record of a finished file tells; None if there is none, or it is not intact."""
        record = self._records.get(name)
        if record is None:
            return None
        path = self.folder / name
        if not path.is_file() or path.stat().st_size != record["size"]:
            return None
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != record["sha256"]:
                print(f"{path} is not what was written; it is made again", flush=True)
                return None
        self.progress.skip(record["size"])
        return record["told"]

    @contextmanager
    def file(self, name: str, told: Any = None) -> Iterator[Hashed]:
        """Yields the file to write; when the body has succeeded it is finished.

        `told` is what its record tells; the body may still fill it in.
        """
        path = self.folder / name
        with path.open("wb") as opened:
            hashed = Hashed(opened, self.progress)
            yield hashed
        sync(path)
        record = {"size": hashed.size, "sha256": hashed.sha256.hexdigest(), "told": told}
        atomic_write_bytes(self.folder / _RECORDS / f"{name}.json", json.dumps(record).encode())
        self._records[name] = record

    def hashes(self) -> dict[str, dict[str, Any]]:
        """Size in bytes and sha256 of each finished file."""
        return {
            name: {"size": record["size"], "sha256": record["sha256"]}
            for name, record in sorted(self._records.items())
        }

    def finish(self) -> None:
        """Gives the folder its name."""
        shutil.rmtree(self.folder / _RECORDS)
        (self.folder / _PLAN).unlink()
        for path in (*self.folder.iterdir(), self.folder):
            sync(path)
        self.folder.rename(self.target)
        sync(self.target.parent)
        self.progress.show()
