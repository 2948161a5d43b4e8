"""What a role is, and one role's process."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from ..config.fabric import interface_of
from ..config.paths import ROOT
from ..config.signals import STORE_VARIABLE, Signals
from . import guard
from .ports import free_port

GRACE_S = 8.0
"""Time between asking a role to end and killing it, seconds."""


class Policy(Enum):
    """What the end of a role means."""

    service = "service"
    """Runs to the end of the job; whenever it ends it is restarted (env, engine)."""
    worker = "worker"
    """Ends with 0 when its work is done; else it is restarted alone (driver)."""
    core = "core"
    """Ends with 0 when its work is done; else the whole job restarts (trainer)."""
    helper = "helper"
    """Restarted, then given up; never fails the run (tracker)."""


class State(Enum):
    """Where a role stands."""

    starting = "starting"
    ready = "ready"
    finished = "finished"
    failed = "failed"
    stopped = "stopped"


@dataclass(frozen=True)
class RoleSpec:
    """One role of a placement."""

    role: str
    index: int
    command: tuple[str, ...]
    """argv, filled in at each start: {host} and {port}, a server's own; {generation}, and {meet},
    HOST:PORT of a store where the parts of a server meet, on its first part's node."""
    policy: Policy
    node: int = 0
    """Which node's supervisor starts it."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the supervisor's own environment; {interface}, of the fabric, {store_host} and
    {store_port} are filled in."""
    deadline_s: float = 60.0
    """Time to be ready, seconds."""
    health: str | None = None
    """A server: the path that answers 200 once it is ready."""
    ready_key: str | None = None
    """Not a server: the signal it publishes once it is ready. Neither: ready when started."""
    port: int | None = None
    """A server's fixed port; None: a free one."""
    scratch: Path | None = None
    """Folder it makes outside of the run folder; removed when it has ended, however that was."""
    numbered: bool = False
    """Several of the kind may run, so its name carries the index."""
    part: int = 0
    """Which of a server's parts this is; the first answers requests."""
    parts: int = 1
    """Parts of the server, one a node it spans. They start together, and start again together."""

    @property
    def name(self) -> str:
        """As in log names and messages: driver, engine-0; engine-0.1, its second part."""
        name = f"{self.role}-{self.index}" if self.numbered else self.role
        return f"{name}.{self.part}" if self.part else name

    @property
    def endpoint_key(self) -> str:
        """The signal under which a server's URL is published."""
        key = f"{self.role}/{self.index}"
        return f"{key}.{self.part}" if self.part else key

    def again_key(self, generation: int) -> str:
        """The signal that every part of the server is to start as this generation."""
        return f"again/{self.role}/{self.index}/{generation}"

    @property
    def finished_key(self) -> str:
        """The signal that a worker's or core role's work is done."""
        return f"finished/{self.name}"


class RoleProcess:
    """A role of this node over all its starts. Its log is kept and appended to."""

    def __init__(self, spec: RoleSpec, run_dir: Path, host: str, lock_fd: int | None) -> None:
        self.spec = spec
        self.state = State.stopped
        self.log = run_dir / "logs" / f"{spec.name}.log"
        self.restarts = 0
        self.generation = 0
        """How often its server started before under this store; the same for all of its parts."""
        self.started_at = 0.0
        self.ready_s: float | None = None
        """Seconds its latest start took to be ready; None until then."""
        self.was_ready = False
        """Ready at least once in this job."""
        self._host, self._lock_fd = host, lock_fd
        self._port = spec.port
        self._meet: Signals | None = None
        self._log_start = 0
        self._lifeline: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The guard's process id while the role runs."""
        return self._process.pid if self._process else None

    @property
    def url(self) -> str:
        """Base URL of a server."""
        return f"http://{self._host}:{self._port}"

    def facts(self) -> dict[str, str | int | float | None]:
        """Where it stands, for heartbeat.json."""
        return {
            "state": self.state.value,
            "pid": self.pid,
            "restarts": self.restarts,
            "ready_s": self.ready_s,
        }

    @property
    def alive(self) -> bool:
        """Started, and its end not yet seen by `poll`."""
        return self._process is not None

    def start(self, store: str, generation: int = 0) -> None:
        """Starts the process under its guard; `store` is the address of the signals.

        Raises OSError, say when the disk is full.
        """
        self.generation = generation
        if self.spec.health is not None:
            # The same port when it is still free, for those who remember the URL.
            self._port = self.spec.port or free_port(self._host, prefer=self._port)
        store_host, _, store_port = store.rpartition(":")
        known = {
            "{host}": self._host,
            "{port}": str(self._port),
            "{interface}": interface_of(self._host),
            "{store_host}": store_host,
            "{store_port}": store_port,
            "{generation}": str(generation),
        }
        if self.spec.parts > 1 and self.spec.part == 0:
            # A new one each time: what a former generation left would mislead this one.
            self._meet, known["{meet}"] = Signals.serve(self._host)
            self._meet.open()
        env = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
            STORE_VARIABLE: store,
            **{name: _filled(value, known) for name, value in self.spec.env.items()},
        }
        command = [_filled(part, known) for part in self.spec.command]
        self.log.parent.mkdir(exist_ok=True)
        ours, self._lifeline = os.pipe()
        try:
            with self.log.open("ab") as log:
                stamp = time.strftime("%Y-%m-%d %H:%M:%S")
                log.write(f"--- {stamp} {self.spec.name} starts ---\n".encode())
                log.flush()
                self._log_start = log.tell()
                self._process = subprocess.Popen(
                    [
                        *(sys.executable, "-I", "-S", guard.__file__, str(GRACE_S)),
                        *(str(self.spec.scratch or ""), *command),
                    ],
                    stdin=ours,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=env,
                    cwd=ROOT,
                    start_new_session=True,
                    # The run's lock lasts as long as anything of the run does.
                    pass_fds=() if self._lock_fd is None else (self._lock_fd,),
                )
        finally:
            os.close(ours)
        self.state, self.started_at, self.ready_s = State.starting, time.monotonic(), None
        if self.spec.health is None and self.spec.ready_key is None:
            self.set_ready()

    def poll(self) -> int | None:
        """The exit code, once, when the role has ended and nothing of it is left."""
        if self._process is None or (code := self._process.poll()) is None:
            return None
        self._process = None
        self._clean_up()
        return code

    def is_ready(self, signals: Signals) -> bool:
        """Whether its gate is passed now."""
        if self.spec.health is not None:
            return _answers(self._host, self._port or 0, self.spec.health)
        assert self.spec.ready_key is not None
        return signals.get(self.spec.ready_key) is not None

    def set_ready(self) -> None:
        """Notes that the gate is passed."""
        self.state, self.was_ready = State.ready, True
        self.ready_s = time.monotonic() - self.started_at

    def ask_to_end(self) -> None:
        """SIGTERM now, killed with everything below it GRACE_S later."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """Ends it and everything below it now."""
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    def wait(self, timeout_s: float) -> bool:
        """Whether it ended within the time; its code is then dropped."""
        if self._process is None:
            return True
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self._process = None
        self._clean_up()
        return True

    def _clean_up(self) -> None:
        self.kill()  # for the lifeline's end that is ours
        if self.spec.scratch is not None:  # its guard did, unless it was killed
            shutil.rmtree(self.spec.scratch, ignore_errors=True)

    def last_lines(self, count: int = 12) -> list[str]:
        """The end of what its latest start wrote."""
        try:
            with self.log.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_start, size - 64 * 1024))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return []
        return [line.rstrip() for line in lines if line.strip()][-count:]


def _filled(text: str, known: Mapping[str, str]) -> str:
    for placeholder, value in known.items():
        text = text.replace(placeholder, value)
    return text


def _answers(host: str, port: int, path: str) -> bool:
    connection = HTTPConnection(host, port, timeout=1.0)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
