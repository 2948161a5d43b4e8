"""One sha256 for a file, a folder or many of them."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from .once import fact

ABSENT = "absent"
"""In the place of a hash of what is not on this machine."""

_WHOLE_FILE_BYTES = 16 * 2**20
_SAMPLES, _SAMPLE_BYTES = 64, 4096
"""Of a larger file."""


def file_hash(path: str | Path) -> str:
    """sha256 over a file's contents. Raises OSError."""
    with open(path, "rb", buffering=0) as file:
        return hashlib.sha256(file.readall()).hexdigest()


@fact
def folder_hash(folder: Path) -> str:
    """sha256 over the files right in `folder`, as :func:`hash_files`, links followed. Raises
    OSError."""
    files = entries(folder, deep=False)
    return hash_files((name, os.path.realpath(path)) for name, path in files)


@fact
def tree_hash(folder: Path) -> str:
    """sha256 over all files below `folder`, ABSENT when there are none. Raises OSError."""
    files = entries(folder, deep=True)
    return hash_files(files) if files else ABSENT


def joined(hashes: Mapping[str, str]) -> str:
    """One sha256 for many, each with its name; ABSENT if one of them is."""
    if ABSENT in hashes.values():
        return ABSENT
    lines = "".join(f"{name} {value}\n" for name, value in sorted(hashes.items()))
    return hashlib.sha256(os.fsencode(lines)).hexdigest()


def entries(folder: Path, deep: bool) -> list[tuple[str, str]]:
    """(name relative to `folder`, path) of each file, sorted; without bytecode."""

    def walk(path: str, prefix: str) -> Iterator[tuple[str, str]]:
        with os.scandir(path) as found:
            for entry in found:
                if not entry.is_dir(follow_symlinks=False):
                    yield prefix + entry.name, entry.path
                elif deep and entry.name != "__pycache__":
                    yield from walk(entry.path, f"{prefix}{entry.name}/")

    return sorted(walk(str(folder), "")) if folder.is_dir() else []


def hash_files(files: Iterable[tuple[str, str]]) -> str:
    """sha256 over names, sizes, contents (above 16 MiB samples of them), and who may be executed.

    `files`: (name, path) of each. A link is known by where it leads. Raises OSError.
    """
    digest = hashlib.sha256()
    for name, path in files:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            if not os.path.islink(path):
                raise
            digest.update(os.fsencode(f"{name} -> {os.readlink(path)}\n"))
            continue
        with open(fd, "rb", buffering=0) as file:
            info = os.fstat(fd)
            mode = " x" if info.st_mode & 0o100 else ""
            digest.update(os.fsencode(f"{name} {info.st_size}{mode}\n"))
            if info.st_size <= _WHOLE_FILE_BYTES:
                digest.update(file.readall())
                continue
            # A fine-tune of a model has its names and sizes; these samples tell them apart.
            for number in range(_SAMPLES):
                file.seek(info.st_size * number // _SAMPLES)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
