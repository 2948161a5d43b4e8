"""Signals that ask a supervisor for something, and its sleep, which they end."""

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType


class Interrupts:
    """What has been asked of this process since `handled` was entered."""

    def __init__(self) -> None:
        self.asked: int | None = None
        """The first signal that asked it to stop: Ctrl-C, SIGTERM or SIGHUP."""
        self.hurry = False
        """Asked to stop more than once."""
        self.warned = False
        """SIGUSR2: the end is near, as of a job's time limit."""
        self._woken = -1

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Takes the signals over; the ends of children wake the sleep too."""

        def stop(number: int, frame: FrameType | None) -> None:
            self.hurry = self.asked is not None
            self.asked = self.asked or number

        def warn(number: int, frame: FrameType | None) -> None:
            self.warned = True

        self._woken, wake = os.pipe()
        for fd in (self._woken, wake):
            os.set_blocking(fd, False)
        old_fd = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup leaves it
            numbers.append(signal.SIGHUP)
        old = {number: signal.signal(number, stop) for number in numbers}
        old[signal.SIGUSR2] = signal.signal(signal.SIGUSR2, warn)
        old[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda number, frame: None)
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(old_fd)
            os.close(wake)
            os.close(self._woken)

    def sleep(self, timeout_s: float) -> None:
        """Until a signal or the end of a child, at most `timeout_s` seconds."""
        select.select([self._woken], [], [], timeout_s)
        with suppress(BlockingIOError):
            os.read(self._woken, 4096)
