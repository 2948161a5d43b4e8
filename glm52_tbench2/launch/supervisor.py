"""Starts the roles of one node, gates them, handles the end of each, and leaves nothing behind.

On several nodes the head's supervisor decides for all (:mod:`.peers`).

Every role runs under a guard (:mod:`.guard`), in a session of its own, so Ctrl-C reaches the
supervisor alone; its log file is its standard output, so a line costs the supervisor nothing.
"""

import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from ..analysis.run_files import FINISHED_FILE
from ..config.checkout import sources
from ..config.errors import UserError
from ..config.files import atomic_write_bytes
from ..config.fingerprints import joined
from ..config.signals import Signals, SignalsLost
from ..trainer.main import RESTART_ME
from .cleaner import GUARD_S, Cleaner
from .ends import RunFailed, culprit, disk_full, exit_text, sentence
from .heart import Heart, NodeLost
from .interrupts import Interrupts
from .peers import Order, Peers, Report
from .roles import GRACE_S, Policy, RoleProcess, RoleSpec, State

USER_ERROR = 2
_HELPERS_S = 30.0
_PEERS_S = GRACE_S + GUARD_S
"""Time the other nodes get to stop their roles."""
_HEAD_S = 300.0
"""Time the head's supervisor gets to appear."""
_TICK_STARTING_S, _TICK_RUNNING_S = 0.25, 1.0


class Watcher(Protocol):
    """Who is told how the run goes."""

    def event(self, text: str) -> None:
        """Something happened that a person may want to know."""

    def tick(self, roles: Sequence[RoleProcess]) -> None:
        """Called about once a second with where every role stands."""


@dataclass(frozen=True)
class Ended:
    """How a run ended on this node."""

    code: int
    """Exit code: 0 finished, 1 failed, 2 bad input, 128 + N stopped by signal N."""
    text: str
    """Why, for a person; empty when it finished."""
    again: bool = False
    """Worth another attempt of the job: warned of its end, or a node was lost."""
    ordered: bool = False
    """Of a member: the head wants it so."""

    @property
    def stopped(self) -> bool:
        """By a signal to this node's supervisor."""
        return self.code > 128


class _JobRestart(Exception):
    """A core role ended: every role starts again, from the last checkpoint."""

    def __init__(self, what: str, text: str) -> None:
        self.what, self.text = what, text


class _Obey(Exception):
    """The head has given an order."""

    def __init__(self, order: Order) -> None:
        self.order = order


class Supervisor:
    """The roles placed on one node, from their start to the last one's end."""

    def __init__(
        self,
        run_dir: Path,
        specs: Sequence[RoleSpec],
        watcher: Watcher,
        *,
        max_restarts: int,
        host: str = "127.0.0.1",
        peers: Peers | None = None,
        lock_fd: int | None = None,
        warning_s: float = 60.0,
        refused: str = "",
    ) -> None:
        """
        Args:
            host: this node's fabric address.
            peers: the job's other supervisors; None: there are none.
            warning_s: time left after SIGUSR2 to write a checkpoint and stop, seconds.
            refused: why the roles cannot start on this node, which ends the job; "": they can.
        """
        self._peers = peers or Peers(run_dir)
        node = self._peers.node
        self.roles = [RoleProcess(s, run_dir, host, lock_fd) for s in specs if s.node == node]
        self._elsewhere = [spec for spec in specs if spec.node != node]
        self._run_dir, self._watcher, self._host = run_dir, watcher, host
        self._warning_s, self._refused = warning_s, refused
        self._max_restarts = max_restarts
        self._job_restarts = 0
        self._code = joined(sources())
        self._phase = "starting"
        self._servers_ready_at: float | None = None
        self._heart, self._cleaner = Heart(run_dir, self._peers), Cleaner(self.roles)
        self._interrupts = Interrupts()
        self._stop_by: float | None = None
        self._signals: Signals | None = None
        self._store = ""

    def run(self) -> Ended:
        """Runs every role to the end. Must be called in the main thread."""
        with self._interrupts.handled(), self._cleaner.nothing_left_behind():
            try:
                (self._run_dir / "logs").mkdir(parents=True, exist_ok=True)
                ended = self._run()
            except UserError as error:
                ended = self._settled(Ended(USER_ERROR, str(error)))
            except RunFailed as failure:
                lost = isinstance(failure, NodeLost)
                ended = self._settled(Ended(1, str(failure), again=lost))
            except SignalsLost:
                ended = Ended(1, "The supervisor of node 0 is gone.", again=True)
            except OSError as error:
                full = disk_full(self._run_dir, [str(error)])
                hint = f" The disk that holds {self._run_dir} is full." if full else ""
                ended = self._settled(Ended(1, f"The supervisor failed: {error}.{hint}"))
            self._phase = "finished" if ended.code == 0 else "stopped"
            why = (ended.text.splitlines() or [""])[0].partition(" The end of ")[0]
            self._tell(
                f"the run ended with exit code {ended.code}{': ' if why else ''}{why}", show=False
            )
            self._stop_every_node(Order(False, ended.code, ended.text, ended.again))
            self._heart.last(self.roles, self._signals, self._facts)
        return ended

    # --- the job ---------------------------------------------------------------------------

    def _run(self) -> Ended:
        if self._log.exists():
            self._tell("the run goes on", show=False)
        self._start_all()
        while True:
            if self._interrupts.asked is not None:
                return self._settled(self._stopped(self._interrupts.asked))
            try:
                self._tick()
            except _JobRestart as cause:
                self._restart_job(cause)
            except _Obey as obey:
                if not obey.order.restart:
                    if obey.order.code == 0:
                        self._let_helpers_end()
                    return Ended(obey.order.code, obey.order.text, obey.order.again, True)
                self._stop_every_node(obey.order)
                self._start_all()
            if self._interrupts.warned and self._peers.head and (ended := self._warned()):
                return ended
            if self._peers.head and self._work_is_done():
                stamp = time.strftime("%Y-%m-%d %H:%M:%S\n")
                atomic_write_bytes(self._run_dir / FINISHED_FILE, stamp.encode())
                self._let_helpers_end()
                return Ended(0, "")
            self._wait()

    def _start_all(self) -> None:
        self._phase, self._servers_ready_at = "starting", None
        if self._peers.head:
            self._signals, self._store = Signals.serve(self._host)
            self._peers.take_over(self._store)
        elif store := self._find_head():
            self._store, self._signals = store, Signals.at(store)
        else:
            return
        if self._refused:  # told now that a member can tell its head
            self._signals.open()
            raise UserError(self._refused)
        for role in self.roles:
            role.start(self._store)
        self._watcher.tick(self.roles)
        self._signals.open()  # imports torch while the roles do the same

    def _find_head(self) -> str | None:
        """The head's store; None: this node is to stop."""
        until = time.monotonic() + _HEAD_S
        while (store := self._peers.find_head()) is None:
            if self._interrupts.asked is not None:
                return None
            if time.monotonic() > until:
                raise RunFailed(f"The supervisor of node 0 did not start within {_HEAD_S:g} s.")
            self._wait()
        return store

    def _restart_job(self, cause: _JobRestart) -> None:
        if not self._peers.head:
            return self._peers.report(self._open_signals, Report(cause.what, cause.text, None))
        if self._job_restarts >= self._max_restarts:
            raise RunFailed(cause.text + _after(self._job_restarts, "job"))
        self._job_restarts += 1
        self._tell(
            f"{cause.what}; every role starts again from the last checkpoint, "
            f"{self._job_restarts} of {self._max_restarts}"
        )
        self._stop_every_node(Order(restart=True))
        if self._interrupts.asked is None:
            self._start_all()

    def _stopped(self, number: int) -> Ended:
        self._phase = "stopping"
        self._tell("Stopping every role; again to kill them at once.")
        return Ended(128 + number, f"Stopped by {signal.Signals(number).name}.")

    def _warned(self) -> Ended | None:
        """Asks for a checkpoint and ends once it is written, or the time for it is over."""
        if self._stop_by is None:
            self._stop_by = time.monotonic() + self._warning_s
            self._tell("Warned that the end is near: writing a checkpoint.")
            self._open_signals.publish("checkpoint/wanted", "1")
        saved = self._open_signals.get("checkpoint/saved")
        if saved is None and self._phase == "running" and time.monotonic() < self._stop_by:
            return None
        return Ended(RESTART_ME, "Stopped before its time was over.", again=True)

    # --- several nodes -----------------------------------------------------------------------

    @property
    def _open_signals(self) -> Signals:
        assert self._signals is not None
        return self._signals

    def _hear(self) -> None:
        """Members obey; the head acts on what they report, and misses who says nothing."""
        if not self._peers.head:
            if order := self._peers.order(self._open_signals):
                raise _Obey(order)
            return
        for report in self._peers.reports(self._open_signals):
            if report.code is None:
                raise _JobRestart(report.what, report.text)
            raise UserError(report.text) if report.code == USER_ERROR else RunFailed(report.text)

    def _settled(self, ended: Ended) -> Ended:
        """How the job ends when this node alone would end so: the head decides."""
        if self._peers.head or self._signals is None:
            return ended
        with suppress(SignalsLost):
            self._peers.report(self._signals, Report(ended.text, ended.text, ended.code))
            until = time.monotonic() + _PEERS_S
            while time.monotonic() < until:
                if order := self._peers.order(self._signals):
                    return Ended(order.code, order.text, order.again, True)
                self._wait()
        return ended

    def _stop_every_node(self, order: Order) -> None:
        """Stops every role of the job, here and, if this is the head, on every other node."""
        if self._peers.head and self._signals is not None:
            self._peers.give(self._signals, order)
        self._stop_all()
        if self._signals is None or self._peers.count == 1:
            return
        if not self._peers.head:
            with suppress(SignalsLost):
                self._peers.obeyed(self._signals)
            return
        until = time.monotonic() + _PEERS_S
        while not self._peers.all_obeyed(self._signals) and time.monotonic() < until:
            self._wait(0.1)

    def _tick(self) -> None:
        for role in self.roles:
            if not role.alive or self._joined(role):
                continue
            if (code := role.poll()) is not None:
                self._ended(role, code)
            elif role.state is State.starting:
                self._check_gate(role)
        if self._phase == "starting" and all(r.state is not State.starting for r in self.roles):
            self._phase = "running"
        self._hear()
        self._heart.beat(self.roles, self._open_signals, self._facts)
        self._watcher.tick(self.roles)

    def _check_gate(self, role: RoleProcess) -> None:
        if role.is_ready(self._open_signals):
            if role.spec.policy is Policy.service:
                self._open_signals.publish(role.spec.endpoint_key, role.url)
            role.set_ready()
            self._tell(f"{role.spec.name} ready after {role.ready_s:.0f} s", show=False)
            return
        since = role.started_at
        if role.spec.policy is not Policy.service:
            # These wait for the servers, whose own deadlines run until then.
            if not self._servers_ready():
                return
            assert self._servers_ready_at is not None
            since = max(since, self._servers_ready_at)
        if time.monotonic() - since > role.spec.deadline_s:
            self._cleaner.kill([role])
            deadline = f"cluster.deadlines.{role.spec.role}"
            self._handle(role, f"was not ready within {role.spec.deadline_s:g} s ({deadline})", 1)

    def _servers_ready(self) -> bool:
        here = [r for r in self.roles if r.spec.policy is Policy.service]
        elsewhere = [s.endpoint_key for s in self._elsewhere if s.policy is Policy.service]
        ready = all(r.state is State.ready for r in here) and self._published(elsewhere)
        if ready and self._servers_ready_at is None:
            self._servers_ready_at = time.monotonic()
        return self._servers_ready_at is not None

    def _work_is_done(self) -> bool:
        work = (Policy.worker, Policy.core)
        here = [r for r in self.roles if r.spec.policy in work]
        elsewhere = [s.finished_key for s in self._elsewhere if s.policy in work]
        if not (here or elsewhere) or any(r.state is not State.finished for r in here):
            return False
        return self._published(elsewhere)

    def _published(self, keys: Iterable[str]) -> bool:
        """Whether all of these signals are published, as by other nodes' supervisors."""
        return all(self._open_signals.get(key) is not None for key in keys)

    def _let_helpers_end(self) -> None:
        """Ends the servers; the helpers see that the run is finished and read what is left."""
        self._phase = "finished"
        for role in self.roles:
            # A server with parts elsewhere ends once their supervisors know that it is over.
            if role.spec.policy is Policy.service and role.spec.parts == 1:
                role.ask_to_end()
        until = time.monotonic() + _HELPERS_S
        helpers = [r for r in self.roles if r.spec.policy is Policy.helper]
        while any(r.alive for r in helpers) and self._interrupts.asked is None:
            for role in helpers:
                role.poll()
            if time.monotonic() > until:
                late = ", ".join(r.spec.name for r in helpers if r.alive)
                self._tell(f"{late} did not end within {_HELPERS_S:g} s of the run's end")
                return
            self._watcher.tick(self.roles)
            self._wait()

    # --- the end of a role -------------------------------------------------------------------

    def _ended(self, role: RoleProcess, code: int) -> None:
        self._hear()  # it may have ended because roles of other nodes were told to
        if code < 0:  # the guard itself was killed, so nobody has cleaned up below it
            self._cleaner.sweep()
            code = 128 - code
        if code != 0 or role.spec.policy is Policy.service:
            return self._handle(role, f"ended with {exit_text(code)}", code)
        role.state = State.finished
        if not self._peers.head:
            self._open_signals.publish(role.spec.finished_key, "1")
        self._tell(f"{role.spec.name} finished", show=False)

    def _handle(self, role: RoleProcess, what: str, code: int) -> None:
        """Restarts `role` or fails the run, as its policy says."""
        if self._interrupts.asked is not None:  # whoever stops us may have stopped the role as well
            role.state = State.stopped
            return
        name, policy, lines = role.spec.name, role.spec.policy, role.last_lines()
        role.state = State.failed
        if policy is Policy.helper:
            if code == USER_ERROR or role.restarts >= self._max_restarts:
                return self._tell(f"{name} {what}; the run goes on without it. {sentence(lines)}")
        elif code == USER_ERROR:
            raise UserError(sentence(lines) or f"{name} {what} and said nothing.")
        elif disk_full(self._run_dir, lines) or not (role.was_ready or code == RESTART_ME):
            self._fail(role, what, lines)
        elif joined(sources()) != self._code:
            self._fail(role, f"{what} and is not restarted, since the code was changed", lines)
        elif policy is Policy.core:
            raise _JobRestart(f"{name} {what}", self._told(role, what, lines))
        elif role.restarts >= self._max_restarts:
            self._fail(role, what + _after(role.restarts, "role"), lines)
        generation = role.generation + 1
        if role.spec.parts > 1:
            self._open_signals.publish(role.spec.again_key(generation), "1")
        self._restart(role, what, generation)

    def _joined(self, role: RoleProcess) -> bool:
        """Whether another part of the role's server ended, so that this one was restarted too."""
        generation = role.generation
        while role.spec.parts > 1 and self._published([role.spec.again_key(generation + 1)]):
            generation += 1
        if generation == role.generation:
            return False
        self._cleaner.kill([role])  # without the others it would hang
        self._restart(role, "lost another part of its server", generation)
        return True

    def _restart(self, role: RoleProcess, what: str, generation: int) -> None:
        spec = role.spec
        role.restarts += 1
        if key := spec.endpoint_key if spec.policy is Policy.service else spec.ready_key:
            self._open_signals.withdraw(key)
        self._tell(f"{spec.name} {what}; restarted, {role.restarts} of {self._max_restarts}")
        role.start(self._store, generation)

    def _fail(self, role: RoleProcess, what: str, lines: list[str]) -> NoReturn:
        raise RunFailed(self._told(role, what, lines))

    def _told(self, role: RoleProcess, what: str, lines: list[str]) -> str:
        return culprit(f"{role.spec.name} {what}.", lines, role.log, self._run_dir)

    # --- stopping ----------------------------------------------------------------------------

    def _stop_all(self) -> None:
        """Asks every role to end, kills what does not, and returns when all are gone."""
        for role in self.roles:
            role.ask_to_end()
        until = time.monotonic() + GRACE_S + 2
        while any(not role.wait(0) for role in self.roles):
            if self._interrupts.hurry or time.monotonic() > until:
                self._cleaner.kill(self.roles)
            self._watcher.tick(self.roles)
            self._wait(0.1)
        for role in self.roles:
            if role.state in (State.starting, State.ready):
                role.state = State.stopped
        self._cleaner.sweep()

    # --- waiting, telling ----------------------------------------------------------------------

    def _wait(self, timeout_s: float | None = None) -> None:
        """Sleeps until the next tick, a signal or the end of a role."""
        if timeout_s is None:
            starting = any(role.state is State.starting for role in self.roles)
            timeout_s = _TICK_STARTING_S if starting else _TICK_RUNNING_S
        self._interrupts.sleep(timeout_s)

    def _tell(self, text: str, show: bool = True) -> None:
        """Notes an event in this node's log and, if `show`, tells the watcher."""
        with suppress(OSError), self._log.open("a") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        if show:
            self._watcher.event(text)

    @property
    def _log(self) -> Path:
        name = "supervisor" if self._peers.head else f"supervisor-{self._peers.node}"
        return self._run_dir / "logs" / f"{name}.log"

    @property
    def _facts(self) -> dict[str, Any]:
        return {"phase": self._phase, "job_restarts": self._job_restarts}


def _after(restarts: int, of: str) -> str:
    return f", after {restarts} restarts of the {of}" if restarts else ""
