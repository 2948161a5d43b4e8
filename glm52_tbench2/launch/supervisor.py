"""Starts the roles of one node, gates them, handles the end of each, and leaves nothing behind.

Every role runs under a guard (:mod:`.guard`), in a session of its own, so Ctrl-C reaches the
supervisor alone; its log file is its standard output, so a line costs the supervisor nothing.
"""

import json
import os
import select
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn, Protocol

from ..config.errors import UserError
from ..config.files import atomic_write_bytes
from ..config.signals import Signals
from . import guard
from .ends import culprit, disk_full, exit_text, sentence
from .roles import GRACE_S, Policy, RoleProcess, RoleSpec, State

RESTART_ME = 75
USER_ERROR = 2
FINISHED_FILE = "finished"
HEARTBEAT_FILE = "heartbeat.json"
HEARTBEAT_S = 10.0
_HELPERS_S = 30.0
_GUARD_S = guard.GIVE_UP_S + 5
_TICK_STARTING_S, _TICK_RUNNING_S = 0.25, 1.0


class Watcher(Protocol):
    """Who is told how the run goes."""

    def event(self, text: str) -> None:
        """Something happened that a person may want to know."""

    def tick(self, roles: Sequence[RoleProcess]) -> None:
        """Called about once a second with where every role stands."""

    def line(self, role: str, text: str) -> None:
        """A line of a role's log, when lines are followed."""


@dataclass(frozen=True)
class Ended:
    """How a run ended on this node."""

    code: int
    """Exit code: 0 finished, 1 failed, 2 bad input, 128 + N stopped by signal N."""
    text: str
    """Why, for a person; empty when it finished."""


class RunFailed(Exception):
    """The run cannot go on; the message names the culprit."""


class _JobRestart(Exception):
    """A core role ended: every role starts again, from the last checkpoint."""

    def __init__(self, role: RoleProcess, what: str, lines: list[str]) -> None:
        self.role, self.what, self.lines = role, what, lines


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
        node: int = 0,
        lock_fd: int | None = None,
        follow: bool = False,
    ) -> None:
        """`host`: this node's fabric address. `follow`: hand log lines to the watcher."""
        self.roles = [RoleProcess(s, run_dir, host, lock_fd) for s in specs if s.node == node]
        self._run_dir, self._watcher, self._host = run_dir, watcher, host
        self._max_restarts, self._follow = max_restarts, follow
        self._job_restarts = 0
        self._phase = "starting"
        self._servers_ready_at: float | None = None
        self._heartbeat_at = 0.0
        self._asked: int | None = None
        self._hurry = False
        self._woken = -1
        self._foreign: set[int] = set()
        self._signals: Signals
        self._store = ""

    def run(self) -> Ended:
        """Runs every role to the end. Must be called in the main thread."""
        (self._run_dir / "logs").mkdir(parents=True, exist_ok=True)
        with self._signals_handled(), self._nothing_left_behind():
            try:
                ended = self._run()
            except UserError as error:
                ended = Ended(USER_ERROR, str(error))
            except RunFailed as failure:
                ended = Ended(1, str(failure))
            except OSError as error:
                full = disk_full(self._run_dir, [str(error)])
                hint = f" The disk that holds {self._run_dir} is full." if full else ""
                ended = Ended(1, f"The supervisor failed: {error}.{hint}")
            self._phase = "finished" if ended.code == 0 else "stopped"
            self._tell(f"the run ended with exit code {ended.code}", show=False)
            self._stop_all()
            self._beat(force=True)
        return ended

    # --- the job ---------------------------------------------------------------------------

    def _run(self) -> Ended:
        self._start_all()
        while True:
            try:
                self._tick()
            except _JobRestart as cause:
                self._restart_job(cause)
            if self._asked is not None:
                name = signal.Signals(self._asked).name
                self._phase = "stopping"
                self._tell("Stopping every role; again to kill them at once.")
                return Ended(128 + self._asked, f"Stopped by {name}.")
            if self._work_is_done():
                self._finish()
                return Ended(0, "")
            self._wait()

    def _start_all(self) -> None:
        self._phase, self._servers_ready_at = "starting", None
        self._signals, self._store = Signals.serve(self._host)
        for role in self.roles:
            role.start(self._store)
        self._watcher.tick(self.roles)
        self._signals.open()  # imports torch while the roles do the same

    def _restart_job(self, cause: _JobRestart) -> None:
        if self._job_restarts >= self._max_restarts:
            self._fail(cause.role, cause.what + _after(self._job_restarts, "job"), cause.lines)
        self._job_restarts += 1
        self._tell(
            f"{cause.role.spec.name} {cause.what}; every role starts again from the last "
            f"checkpoint, {self._job_restarts} of {self._max_restarts}"
        )
        self._stop_all()
        if self._asked is None:
            self._start_all()

    def _tick(self) -> None:
        for role in self.roles:
            if self._follow:
                for line in role.new_lines():
                    self._watcher.line(role.spec.name, line)
            if not role.alive:
                continue
            if (code := role.poll()) is not None:
                self._ended(role, code)
            elif role.state is State.starting:
                self._check_gate(role)
        if self._phase == "starting" and all(r.state is not State.starting for r in self.roles):
            self._phase = "running"
        self._beat()
        self._watcher.tick(self.roles)

    def _check_gate(self, role: RoleProcess) -> None:
        if role.is_ready(self._signals):
            if role.spec.policy is Policy.service:
                self._signals.publish(role.spec.endpoint_key, role.url)
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
            self._kill([role])
            deadline = f"cluster.deadlines.{role.spec.role}"
            self._handle(role, f"was not ready within {role.spec.deadline_s:g} s ({deadline})", 1)

    def _servers_ready(self) -> bool:
        servers = [r for r in self.roles if r.spec.policy is Policy.service]
        if self._servers_ready_at is None and all(r.state is State.ready for r in servers):
            self._servers_ready_at = time.monotonic()
        return self._servers_ready_at is not None

    def _work_is_done(self) -> bool:
        work = [r for r in self.roles if r.spec.policy in (Policy.worker, Policy.core)]
        return bool(work) and all(r.state is State.finished for r in work)

    def _finish(self) -> None:
        """Lets the helpers see the end, and read what the last roles wrote."""
        self._phase = "finished"
        stamp = time.strftime("%Y-%m-%d %H:%M:%S\n")
        atomic_write_bytes(self._run_dir / FINISHED_FILE, stamp.encode())
        for role in self.roles:
            if role.spec.policy is Policy.service:
                role.ask_to_end()
        until = time.monotonic() + _HELPERS_S
        helpers = [r for r in self.roles if r.spec.policy is Policy.helper]
        while any(r.alive for r in helpers) and self._asked is None:
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
        if code < 0:  # the guard itself was killed, so nobody has cleaned up below it
            self._sweep()
            code = 128 - code
        if code != 0 or role.spec.policy is Policy.service:
            return self._handle(role, f"ended with {exit_text(code)}", code)
        role.state = State.finished
        self._tell(f"{role.spec.name} finished", show=False)

    def _handle(self, role: RoleProcess, what: str, code: int) -> None:
        """Restarts `role` or fails the run, as its policy says."""
        if self._asked is not None:  # whoever stops us may have stopped the role as well
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
        elif policy is Policy.core:
            raise _JobRestart(role, what, lines)
        elif role.restarts >= self._max_restarts:
            self._fail(role, what + _after(role.restarts, "role"), lines)
        role.restarts += 1
        if key := role.spec.endpoint_key if policy is Policy.service else role.spec.ready_key:
            self._signals.withdraw(key)
        self._tell(f"{name} {what}; restarted, {role.restarts} of {self._max_restarts}")
        role.start(self._store)

    def _fail(self, role: RoleProcess, what: str, lines: list[str]) -> NoReturn:
        raise RunFailed(culprit(f"{role.spec.name} {what}.", lines, role.log, self._run_dir))

    # --- stopping ----------------------------------------------------------------------------

    def _stop_all(self) -> None:
        """Asks every role to end, kills what does not, and returns when all are gone."""
        for role in self.roles:
            role.ask_to_end()
        until = time.monotonic() + GRACE_S + 2
        while any(not role.wait(0) for role in self.roles):
            if self._hurry or time.monotonic() > until:
                self._kill(self.roles)
            self._watcher.tick(self.roles)
            self._wait(0.1)
        for role in self.roles:
            if role.state in (State.starting, State.ready):
                role.state = State.stopped
        self._sweep()

    def _kill(self, roles: Sequence[RoleProcess]) -> None:
        for role in roles:
            role.kill()
        for role in roles:
            if not role.wait(_GUARD_S) and role.pid is not None:
                guard.kill_trees([role.pid])
                role.wait(_GUARD_S)

    def _sweep(self) -> None:
        """Kills what outlived its guard: orphans, which came to this process."""
        known = self._foreign | {role.pid for role in self.roles if role.pid is not None}
        while strays := set(guard.children_by_parent().get(os.getpid(), [])) - known:
            guard.kill_trees(list(strays))
            for pid in strays:
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    @contextmanager
    def _nothing_left_behind(self) -> Iterator[None]:
        self._foreign = set(guard.children_by_parent().get(os.getpid(), []))
        guard.adopt_orphans()
        try:
            yield
        finally:
            self._kill(self.roles)
            self._sweep()
            guard.adopt_orphans(False)

    # --- signals, waiting, telling -------------------------------------------------------------

    @contextmanager
    def _signals_handled(self) -> Iterator[None]:
        """Ctrl-C, SIGTERM, SIGHUP: stop; a second one: now. Children's ends wake the loop."""

        def stop(number: int, frame: FrameType | None) -> None:
            self._hurry = self._asked is not None
            self._asked = self._asked or number

        self._woken, wake = os.pipe()
        for fd in (self._woken, wake):
            os.set_blocking(fd, False)
        old_fd = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup leaves it
            numbers.append(signal.SIGHUP)
        old = {number: signal.signal(number, stop) for number in numbers}
        old[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda number, frame: None)
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(old_fd)
            os.close(wake)
            os.close(self._woken)

    def _wait(self, timeout_s: float | None = None) -> None:
        """Sleeps until the next tick, a signal or the end of a role."""
        if timeout_s is None:
            starting = any(role.state is State.starting for role in self.roles)
            timeout_s = _TICK_STARTING_S if starting else _TICK_RUNNING_S
        select.select([self._woken], [], [], timeout_s)
        with suppress(BlockingIOError):
            os.read(self._woken, 4096)

    def _tell(self, text: str, show: bool = True) -> None:
        """Notes an event in logs/supervisor.log and, if `show`, tells the watcher."""
        with suppress(OSError), (self._run_dir / "logs" / "supervisor.log").open("a") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        if show:
            self._watcher.event(text)

    def _beat(self, force: bool = False) -> None:
        """Writes heartbeat.json, which also says where every role stands."""
        if not force and time.monotonic() - self._heartbeat_at < HEARTBEAT_S:
            return
        self._heartbeat_at = time.monotonic()
        content = {
            "time": time.time(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "phase": self._phase,
            "job_restarts": self._job_restarts,
            "roles": {
                role.spec.name: {
                    "state": role.state.value,
                    "pid": role.pid,
                    "restarts": role.restarts,
                    "ready_s": role.ready_s,
                }
                for role in self.roles
            },
        }
        with suppress(OSError):  # a full disk is told by the role that needs it
            atomic_write_bytes(self._run_dir / HEARTBEAT_FILE, json.dumps(content).encode())


def _after(restarts: int, of: str) -> str:
    return f", after {restarts} restarts of the {of}" if restarts else ""
