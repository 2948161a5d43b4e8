"""Addresses and ports of a run's servers."""

import random
import socket

import psutil

from ..config.errors import UserError

# Below the range from which Linux takes the ports of outgoing connections, so that none of
# those can take a port between its choice here and the seconds later when its server binds it.
_PORTS = range(20000, 32000)
_given: set[int] = set()


def fabric_address(prefix: str) -> tuple[str, str]:
    """(address, interface) of this machine on the fabric, as ("127.0.0.1", "lo").

    Raises UserError when no address starts with `prefix`.
    """
    found = [
        (address.address, interface)
        for interface, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if address.family == socket.AF_INET
    ]
    for address, interface in found:
        if address.startswith(prefix):
            return address, interface
    raise UserError(
        f"cluster.fabric is '{prefix}', but no address of this machine starts with it; "
        f"it has {', '.join(address for address, _ in found)}."
    )


def interface_of(host: str) -> str:
    """The interface that has an address of this machine, as fabric_address gives it."""
    return fabric_address(host)[1]


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
