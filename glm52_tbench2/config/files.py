"""Writes that are whole or absent, also after kill -9."""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

Line = TypeVar("Line")

SCHEMA_VERSION = "1"
"""Of step files: which columns they have and what these mean."""


def sync(path: Path) -> None:
    """Returns once a file, or what a folder lists, is on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; what is written there takes its name on success.

    Raises what the body raises, after removing the temporary file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def atomic_write_bytes(path: Path, data: bytes) -> None:
    """Writes `data` to `path`, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def append_line(path: Path, line: str) -> None:
    """Appends a line to `path` under a lock, so that several processes and nodes never mix.

    Raises OSError when the disk has no room for all of it.
    """
    data = f"{line}\n".encode()
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)  # NFS has no O_APPEND; under a lock it knows the true size
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":  # a kill cut the last line short
            data = b"\n" + data
        while data:  # a disk that fills up takes a part first, and refuses the rest
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)


def read_lines(
    path: Path, parse: Callable[[Any], Line], warn: Callable[[str], None] | None = None
) -> list[Line]:
    """What `parse` makes of the JSON of each line of `path`; [] if it is not there.

    A line that is no JSON, as one cut by a kill, or that `parse` refuses with KeyError,
    OverflowError, TypeError or ValueError is left out; `warn` is told how many. Raises OSError
    where `path` cannot be read.
    """
    try:
        lines = path.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            found.append(parse(json.loads(line)))
        except (KeyError, OverflowError, TypeError, ValueError):
            continue
    if warn and (lost := len(lines) - len(found)):
        warn(f"{path.name}: {lost} of {len(lines)} lines are no records; left out")
    return found
