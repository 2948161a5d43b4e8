"""A job's signs of life: members tell the head, and the head tells everybody in heartbeat.json."""

import json
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..analysis.run_files import HEARTBEAT_FILE
from ..config.files import atomic_write_bytes
from ..config.signals import Signals, SignalsLost
from .ends import RunFailed
from .peers import Peers
from .roles import RoleProcess

HEARTBEAT_S = 10.0


class NodeLost(RunFailed):
    """A node's supervisor says nothing any more."""


class Heart:
    """Beats every 10 s, when asked often enough."""

    def __init__(self, run_dir: Path, peers: Peers) -> None:
        self._run_dir, self._peers = run_dir, peers
        self._at = -HEARTBEAT_S

    def beat(self, roles: Sequence[RoleProcess], signals: Signals, facts: dict[str, Any]) -> None:
        """Says that this node lives and where its roles stand; `facts` are told with it.

        Raises NodeLost for a member that has gone silent, RunFailed when a later attempt of the job
        has the run, SignalsLost on a member without its head.
        """
        if time.monotonic() - self._at < HEARTBEAT_S:
            return
        self._at = time.monotonic()
        if not self._peers.head:
            return self._peers.beat(signals, self._own(roles))
        if self._peers.superseded():
            raise RunFailed(f"Another attempt of the job has taken {self._run_dir} over.")
        others = self._peers.beats(signals) if self._peers.count > 1 else {}
        if (node := self._peers.silent()) is not None:
            host = others.get(node, {"host": "which never spoke"})["host"]
            raise NodeLost(f"Node {node} ({host}) is not heard of.")
        self._write(self._own(roles), others, facts)

    def last(
        self, roles: Sequence[RoleProcess], signals: Signals | None, facts: dict[str, Any]
    ) -> None:
        """The last beat, which tells how it ended."""
        if not self._peers.head or self._peers.superseded():
            return
        others = {}
        if signals is not None and self._peers.count > 1:
            with suppress(SignalsLost):
                others = self._peers.beats(signals)
        self._write(self._own(roles), others, facts)

    def _own(self, roles: Sequence[RoleProcess]) -> dict[str, Any]:
        return {
            "time": time.time(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "roles": {role.spec.name: role.facts() for role in roles},
        }

    def _write(
        self, own: dict[str, Any], others: dict[int, dict[str, Any]], facts: dict[str, Any]
    ) -> None:
        for beat in others.values():
            own["roles"] |= beat["roles"]
        nodes = {node: beat["host"] for node, beat in others.items()}
        content = {**own, **facts, "attempt": self._peers.attempt, "nodes": nodes}
        with suppress(OSError):  # a full disk is told by the role that needs it
            atomic_write_bytes(self._run_dir / HEARTBEAT_FILE, json.dumps(content).encode())
