"""What the supervisors of one job tell each other.

The supervisor of node 0 is the head: it serves the store, says where in RUN/head.json on the shared
disk, and decides. A member reports what happened to its roles and obeys. Both also notice who has
gone silent, and a head notices when a later attempt of the same job has taken the run over.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..config.files import atomic_write_bytes
from ..config.signals import Signals

HEAD_FILE = "head.json"
SILENT_S = 60.0
"""A node not heard of for so long is lost, seconds."""
FIRST_S = 300.0
"""The same before it is heard of for the first time: nodes do not start at one moment."""


@dataclass(frozen=True)
class Order:
    """What the head wants of every node."""

    restart: bool
    """Start every role again; else the job ends."""
    code: int = 0
    """Exit code of the job."""
    text: str = ""
    """Why it ends, for a person."""
    again: bool = False
    """Worth another attempt of the job."""


@dataclass(frozen=True)
class Report:
    """What happened to a role of a member."""

    what: str
    """One line: trainer-1 ended with exit code 1."""
    text: str
    """The whole, with the end of its log."""
    code: int | None
    """Exit code it would end the job with; None: every role should start again."""


class Peers:
    """This node's place among `count`, and its words with the others."""

    def __init__(self, run_dir: Path, node: int = 0, count: int = 1, attempt: str = "") -> None:
        """`attempt`: names one start of the job, the same on every node; "" where there is no
        scheduler that could start another."""
        self.node, self.count, self.attempt = node, count, attempt
        self._path = run_dir / HEAD_FILE
        self._starts = 0
        self._heard: dict[int, tuple[str, float]] = {}
        self._lost: set[int] = set()
        self._since = time.monotonic()

    @property
    def head(self) -> bool:
        """Whether this node's supervisor decides."""
        return self.node == 0

    # --- who leads ------------------------------------------------------------------------------

    def take_over(self, store: str = "") -> None:
        """Head: says that this attempt has the run, and where its store is once there is one."""
        if store:
            self._starts += 1
            self._since = time.monotonic()
        if self.attempt:
            content = {"attempt": self.attempt, "start": self._starts, "store": store}
            atomic_write_bytes(self._path, json.dumps(content).encode())

    def find_head(self) -> str | None:
        """Member: the store of the start after the last one found; None while it is not there."""
        found = self._read()
        if found.get("attempt") != self.attempt or found.get("start") != self._starts + 1:
            return None
        self._starts += 1
        return str(found["store"])

    def superseded(self) -> bool:
        """Whether a later attempt has taken the run over, as after a node was given up."""
        return bool(self.attempt) and self._read().get("attempt", self.attempt) != self.attempt

    def _read(self) -> dict[str, Any]:
        try:
            content = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    # --- what members say -----------------------------------------------------------------------

    def report(self, signals: Signals, report: Report) -> None:
        """Member: tells the head. Raises SignalsLost."""
        signals.publish(f"report/{self.node}", json.dumps(asdict(report)))

    def reports(self, signals: Signals) -> list[Report]:
        """Head: what was reported since this start."""
        told = (signals.get(f"report/{node}") for node in range(1, self.count))
        return [Report(**json.loads(text)) for text in told if text]

    def beat(self, signals: Signals, content: dict[str, Any]) -> None:
        """Member: says that it lives, and how. Raises SignalsLost."""
        signals.publish(f"beat/{self.node}", json.dumps(content))

    def beats(self, signals: Signals) -> dict[int, dict[str, Any]]:
        """Head: what each member said last."""
        found = {}
        for node in range(1, self.count):
            if text := signals.get(f"beat/{node}"):
                found[node] = json.loads(text)
                if self._heard.get(node, ("", 0.0))[0] != text:
                    self._heard[node] = (text, time.monotonic())
        return found

    def silent(self) -> int | None:
        """Head: a member that is not heard of any more; its node's number."""
        now = time.monotonic()
        for node in range(1, self.count):
            since, limit_s = self._since, FIRST_S
            if node in self._heard:
                since, limit_s = self._heard[node][1], SILENT_S
            if now - since > limit_s:
                self._lost.add(node)
        return min(self._lost, default=None)

    # --- what the head wants --------------------------------------------------------------------

    def give(self, signals: Signals, order: Order) -> None:
        """Head: gives an order to every member."""
        self._heard.clear()
        if self.count > 1:
            signals.publish("order", json.dumps(asdict(order)))

    def order(self, signals: Signals) -> Order | None:
        """Member: the head's order, once there is one. Raises SignalsLost."""
        text = signals.get("order")
        return Order(**json.loads(text)) if text else None

    def obeyed(self, signals: Signals) -> None:
        """Member: says that nothing of it runs any more. Raises SignalsLost."""
        signals.publish(f"obeyed/{self.node}", "1")

    def all_obeyed(self, signals: Signals) -> bool:
        """Head: whether no member runs anything any more, but for those that are lost."""
        left = set(range(1, self.count)) - self._lost
        return all(signals.get(f"obeyed/{node}") for node in left)
