"""This machine's address on the network that a run uses."""

import socket

import psutil

from .errors import UserError


def fabric_address(prefix: str) -> tuple[str, str]:
    """(address, interface) of this machine on the fabric, as ("127.0.0.1", "lo"); the address that
    is `prefix`, or else the first that starts with it.

    Raises UserError when no address starts with `prefix`.
    """
    found = [
        (address.address, interface)
        for interface, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if address.family == socket.AF_INET
    ]
    for address, interface in sorted(found, key=lambda one: one[0] != prefix):
        if address.startswith(prefix):
            return address, interface
    raise UserError(
        f"cluster.fabric is '{prefix}', but no address of this machine starts with it; "
        f"it has {', '.join(address for address, _ in found)}."
    )


def interface_of(host: str) -> str:
    """The interface that has an address of this machine, as fabric_address gives it."""
    return fabric_address(host)[1]
