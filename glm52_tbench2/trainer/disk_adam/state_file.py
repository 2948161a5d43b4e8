"""The file of a rank's optimizer state: float32 vectors of one length, in two versions.

An update reads one version and writes the other, so a checkpoint can be written from the one while
training goes on. The file has no name: it goes with its process, however that ends, and nothing
can be resumed from a half-made update. Reads and writes go past the page cache.
"""

import errno
import fcntl
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from glm52_tbench2.config.errors import UserError

PAGE = mmap.ALLOCATIONGRANULARITY
"""Bytes at whose multiples a bucket starts and ends."""
_ITEM = torch.float32.itemsize
MULTIPLE = PAGE // _ITEM
"""Elements of a page."""
_GIB = 2**30


class StateFile:
    """Vectors on a disk, all zero at first."""

    def __init__(self, folder: Path, num_vectors: int, num_elements: int) -> None:
        """Reserves the space of both versions.

        Raises UserError when `folder` cannot be written, is too small or cannot bypass the cache.
        """
        self.num_vectors = num_vectors
        self.length = -(-num_elements // MULTIPLE) * MULTIPLE
        """Elements of a vector, the padding at its end included."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
            self._fd = self._file.fileno()
            if shutil.disk_usage(folder).free < 2 * self.nbytes:  # else it would be filled first
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if self.length:
                os.posix_fallocate(self._fd, 0, 2 * self.nbytes)
            flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | os.O_DIRECT)
        except OSError as error:
            raise _told(error, folder, 2 * self.nbytes) from error

    @property
    def nbytes(self) -> int:
        """Bytes of one version."""
        return self.num_vectors * self.length * _ITEM

    def read(self, version: int, start: int, bucket: Tensor) -> None:
        """Fills `bucket`, [vectors, elements], with the elements from `start` on."""
        self._move(os.preadv, version, start, bucket)

    def write(self, version: int, start: int, bucket: Tensor) -> None:
        """Writes `bucket`, [vectors, elements], to the elements from `start` on."""
        self._move(os.pwritev, version, start, bucket)

    def mapped(self, version: int) -> Tensor:
        """One version as it lies on the disk, [vectors, length]; what is set here is set there.

        For whole passes that are not in a hurry, as a checkpoint's. `sync` before the next `read`.
        """
        if not self.length:
            return torch.empty(self.num_vectors, 0)
        memory = mmap.mmap(self._fd, self.nbytes, offset=version * self.nbytes)
        return torch.frombuffer(memory, dtype=torch.float32).view(self.num_vectors, -1)

    def sync(self) -> None:
        """Returns once what was set through `mapped` is on the disk."""
        os.fsync(self._fd)

    def _move(
        self, move: Callable[[int, list[memoryview], int], int], version: int, start: int, b: Tensor
    ) -> None:
        for vector, values in enumerate(b):
            left = memoryview(values.numpy()).cast("B")
            at = version * self.nbytes + (vector * self.length + start) * _ITEM
            while left:  # one call moves 2 GiB at most
                moved = move(self._fd, [left], at)
                left, at = left[moved:], at + moved


def buffer(num_vectors: int, num_elements: int, pinned: bool) -> Tensor:
    """An unset bucket, [vectors, elements] float32, where the disk can write to it directly."""
    nbytes = num_vectors * num_elements * _ITEM
    raw = torch.empty(nbytes + PAGE, dtype=torch.uint8, pin_memory=pinned)
    start = -raw.data_ptr() % PAGE
    return raw[start : start + nbytes].view(torch.float32).view(num_vectors, num_elements)


def _told(error: OSError, folder: Path, nbytes: int) -> UserError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason += f", {shutil.disk_usage(folder).free / _GIB:.3f} GiB are free"
    elif error.errno == errno.EINVAL:
        reason = "its file system cannot read and write past the page cache"
    return UserError(
        f"optim.state_dir is {folder}, where a rank's optimizer state needs a file of "
        f"{nbytes / _GIB:.3f} GiB: {reason}; write optim.state_dir=FOLDER, on a disk of each node, "
        "or optim.state_on_disk=false."
    )
