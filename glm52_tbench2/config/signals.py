"""Small signals between the roles of a run: who is ready where, which weights are served.

One torch TCPStore, owned by the head supervisor and bound to the fabric address alone; its
address reaches every role as GLM52_STORE. Keys in use:

- ``env/0``, ``engine/I``: base URL of a server that is ready; absent while it is not
- ``engine/I.P``: the same of part P of an engine over nodes; ``rendezvous/engine/I/G``: what the
  parts of its generation G start from; ``again/engine/I/G``: "1" once they are to start
- ``driver/ready``, ``trainer/ready``: "1"
- ``weights/version``: the newest version that every engine took, a decimal integer; one that was
  restarted since may serve another, or none, until the trainer has given it this one: ask it
- ``weights/group``: name of the process group that the weights last went through
- ``done``: "1" once the last step is trained and its checkpoint is complete
- ``finished/ROLE``: "1" once a role that has work to do has done it
- ``checkpoint/wanted``: "1" when the job is about to end; ``checkpoint/saved``: the step whose
  checkpoint answers it
- what supervisors tell each other: launch/peers.py

A server that is restarted may come back under another URL, so `wait` for it again rather
than remember it.
"""

import os
import socket
import time
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import TCPStore

STORE_VARIABLE = "GLM52_STORE"
_POLL_S = 0.05
_TIMEOUT = timedelta(seconds=60)
_PROBE_S = 20.0
# Of a store that was there a moment ago; torch takes twice as long.
_CONNECT_TIMEOUT = timedelta(seconds=5)


class SignalsLost(RuntimeError):
    """The store does not answer: its supervisor is gone, or was never there."""


class Signals:
    """A handle on the store, safe to use from several threads of one process."""

    def __init__(self, host: str, port: int, listener: socket.socket | None = None) -> None:
        self._host, self._port, self._listener = host, port, listener
        self._unreachable: SignalsLost | None = None

    @classmethod
    def serve(cls, host: str) -> "tuple[Signals, str]":
        """The serving handle, and the address HOST:PORT for GLM52_STORE.

        The socket listens at once, so roles can be started with the address; the store behind
        it opens with the first call on the handle (or `open`), since that imports torch.
        """
        listener = socket.create_server((host, 0), backlog=1024)
        port = listener.getsockname()[1]
        return cls(host, port, listener), f"{host}:{port}"

    @classmethod
    def at(cls, address: str) -> "Signals":
        """A handle on the store that another process serves at HOST:PORT."""
        host, port = address.rsplit(":", 1)
        return cls(host, int(port))

    @property
    def address(self) -> str:
        """HOST:PORT of the store."""
        return f"{self._host}:{self._port}"

    @classmethod
    def from_env(cls) -> "Signals":
        """The handle of a role started by a supervisor. Raises SignalsLost outside of one."""
        address = os.environ.get(STORE_VARIABLE)
        if not address:
            raise SignalsLost(
                f"{STORE_VARIABLE} is not set: this role runs under a supervisor only"
            )
        return cls.at(address)

    @cached_property
    def store(self) -> "TCPStore":
        """The torch store itself. Raises SignalsLost when it cannot be reached."""
        from torch.distributed import DistError, TCPStore

        if self._unreachable is not None:  # else every call would try for a minute
            raise self._unreachable
        # Left to itself a serving TCPStore listens on every interface: it gets our socket instead.
        listen_fd = None if self._listener is None else self._listener.detach()
        try:
            if listen_fd is None:  # torch would try for minutes; a store that is there listens
                socket.create_connection((self._host, self._port), _PROBE_S).close()
            store = TCPStore(
                self._host,
                self._port,
                is_master=listen_fd is not None,
                timeout=_CONNECT_TIMEOUT if listen_fd is None else _TIMEOUT,
                wait_for_workers=False,
                master_listen_fd=listen_fd,
            )
            store.set_timeout(_TIMEOUT)
            return store
        except (DistError, OSError) as error:
            self._unreachable = self._lost(error)
            raise self._unreachable from None

    def open(self) -> None:
        """Opens the store now."""
        _ = self.store

    def publish(self, key: str, value: str) -> None:
        """Sets `key`, for all roles to see. Raises SignalsLost."""
        try:
            self.store.set(key, value)
        except RuntimeError as error:
            raise self._lost(error) from None

    def withdraw(self, key: str) -> None:
        """Takes `key` back, as if it had never been published. Raises SignalsLost."""
        # Emptied rather than deleted: a `get` that has just seen the key would hang on its loss.
        self.publish(key, "")

    def get(self, key: str) -> str | None:
        """The value of `key` now, None while it is not published. Raises SignalsLost."""
        try:
            if not self.store.check([key]):
                return None
            return self.store.get(key).decode() or None
        except RuntimeError as error:
            raise self._lost(error) from None

    def wait(self, key: str, timeout_s: float) -> str:
        """The value of `key`, once it is published.

        Polls, where the store's own wait would hold back Ctrl-C and every other thread's call.
        Raises TimeoutError after `timeout_s` seconds, SignalsLost when the supervisor is gone.
        """
        deadline = time.monotonic() + timeout_s
        while (value := self.get(key)) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no signal {key!r} within {timeout_s:g} s")
            time.sleep(_POLL_S)
        return value

    def _lost(self, error: Exception) -> SignalsLost:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return SignalsLost(f"the supervisor's store at {self._host}:{self._port} is gone: {reason}")
