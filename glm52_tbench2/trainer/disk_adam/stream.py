"""One pass over a state file: the next bucket is read and the last one written meanwhile."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from torch import Tensor

from .state_file import MULTIPLE, PAGE, StateFile, buffer


def make_buffers(num_vectors: int, bucket_bytes: int, longest: int, pinned: bool) -> list[Tensor]:
    """The buckets of all streams of a rank, [vectors, elements] float32.

    Each has at most `bucket_bytes`, but a page a vector, and no more than a vector of `longest`
    elements needs.
    """
    pages = max(1, min(bucket_bytes // (num_vectors * PAGE), -(-longest // MULTIPLE)))
    return [buffer(num_vectors, pages * MULTIPLE, pinned) for _ in range(3)]


class Stream:
    """Passes over a state file.

    Three buckets are in memory: one is read, one updated, one written. System calls leave the
    interpreter to the update, so threads are enough.
    """

    def __init__(self, file: StateFile, buffers: list[Tensor]) -> None:
        """`buffers`: free while no other stream runs."""
        self._file, self._buffers = file, buffers
        self._starts = range(0, file.length, buffers[0].size(1))

    def run(self, source: int, update: Callable[[int, Tensor], None]) -> None:
        """Reads each bucket of version `source`, updates it, writes it to the other version.

        Args:
            update: changes a bucket, [vectors, elements], in place; told its first element.

        Raises OSError.
        """
        written: list[Future[None]] = []

        def read(number: int) -> Tensor:
            if number >= len(self._buffers):
                written[number - len(self._buffers)].result()
            start = self._starts[number]
            bucket = self._buffers[number % len(self._buffers)][:, : self._file.length - start]
            self._file.read(source, start, bucket)
            return bucket

        with ThreadPoolExecutor(2) as threads:
            reading = threads.submit(read, 0) if self._starts else None
            for number, start in enumerate(self._starts):
                assert reading is not None
                bucket = reading.result()
                if number + 1 < len(self._starts):
                    reading = threads.submit(read, number + 1)
                update(start, bucket)
                written.append(threads.submit(self._file.write, 1 - source, start, bucket))
            for done in written:
                done.result()
