"""Addresses and ports of a run's servers."""

import random
import socket

from ..config.errors import UserError

# Below the range from which Linux takes the ports of outgoing connections, so that none of
# those can take a port between its choice here and the seconds later when its server binds it.
_PORTS = range(20000, 32000)
_given: set[int] = set()


def is_free(host: str, port: int) -> bool:
    """Whether a server could bind the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port(host: str, prefer: int | None = None) -> int:
    """A port that is free on `host`, `prefer` if that is; never the same one twice.

    Raises UserError when none is found.
    """
    if prefer is not None and is_free(host, prefer):
        return prefer
    for port in random.sample(_PORTS, 200):
        if port not in _given and is_free(host, port):
            _given.add(port)
            return port
    raise UserError(f"No free port between {_PORTS.start} and {_PORTS.stop} on {host}.")
