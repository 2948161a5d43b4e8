"""Reading and feeding several pipes of a process at once, within a time limit."""

import codecs
import fcntl
import os
import select
import struct
import termios
import time
from collections.abc import Callable

_PIECE = 1 << 16


class Pipe:
    """A pipe of this process: `out` is read here, `into` is for a child to write."""

    def __init__(self) -> None:
        self.out, self.into = os.pipe()

    def close(self) -> None:
        os.close(self.out)
        os.close(self.into)


class Output:
    """The first `limit` bytes out of a pipe. What follows is read and dropped: no writer waits."""

    def __init__(self, fd: int, limit: int) -> None:
        self.fd = fd
        self._limit = limit
        self._bytes = bytearray()
        self._cut = False

    def read(self) -> bool:
        """Takes what is there; False when every writer has closed it."""
        piece = os.read(self.fd, _PIECE)
        room = self._limit - len(self._bytes)
        self._cut |= len(piece) > room
        self._bytes += piece[:room]
        return bool(piece)

    def read_rest(self) -> None:
        """Takes what was written before this call, and waits for nothing."""
        waiting = struct.unpack("i", fcntl.ioctl(self.fd, termios.FIONREAD, b"\0" * 4))[0]
        while waiting > 0 and self.read():
            waiting -= _PIECE

    @property
    def raw(self) -> bytes:
        """What is kept."""
        return bytes(self._bytes)

    @property
    def text(self) -> str:
        """Decoded as UTF-8, U+FFFD for what is not; a character cut in two is dropped."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return decoder.decode(self.raw, final=not self._cut)


class Input:
    """Bytes on their way into a pipe, written as its reader takes them."""

    def __init__(self, fd: int, data: bytes) -> None:
        self.fd = fd
        self._left = memoryview(data)
        os.set_blocking(fd, False)

    def write(self) -> bool:
        """Writes what fits; False when all is written or nobody reads."""
        try:
            self._left = self._left[os.write(self.fd, self._left[:_PIECE]) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            return False
        return len(self._left) > 0


def pump(
    outputs: list[Output],
    source: Input | None,
    ended_fd: int,
    deadline: float,
    until: Callable[[], bool] = lambda: False,
    at_end: Callable[[], None] = lambda: None,
) -> bool:
    """Feeds `source` and reads `outputs` until `until()`, or the process of `ended_fd` has ended.

    `ended_fd` is a pidfd; `at_end` is called when all of `source` is written.
    Returns False when `deadline` (monotonic seconds) comes first.
    """
    poll = select.poll()
    reads = {output.fd: output for output in outputs}
    for fd in (*reads, ended_fd):
        poll.register(fd, select.POLLIN)
    if source is not None:
        poll.register(source.fd, select.POLLOUT)
    while not until():
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        ready = {fd for fd, _ in poll.poll(left * 1000)}
        for fd in ready & reads.keys():
            if not reads[fd].read():
                poll.unregister(fd)
        if source is not None and source.fd in ready and not source.write():
            poll.unregister(source.fd)
            source = None
            at_end()
        if ended_fd in ready:
            break
    return True
