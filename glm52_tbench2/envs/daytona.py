"""Provider `daytona`: one cloud sandbox an episode, by way of Daytona's own client.

A sandbox starts from the task's official image, or from its Dockerfile; Daytona builds a definition
once and keeps it. No server of ours runs inside: commands go through Daytona's toolbox.

Nothing may be left behind that costs money. A creation that fails, times out or is cancelled can
still have made a sandbox, so each has a name chosen here, by which it is removed whatever is known
of it. Every sandbox carries its run's label, which is swept at start and end. What survives even
that stops and deletes itself after `auto_stop_min` minutes without a sign of life.
"""

import base64
import json
import logging
import math
import os
import random
import re
import secrets
import shlex
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..config.errors import UserError
from ..config.paths import resolve
from ..config.schema import SandboxConfig
from ..tasks.suite import Task
from .dockerfile import inlined
from .remote import RUN_LABEL, RemoteSandbox, new_name, started, turn
from .sandbox import OpenSandbox, SandboxError

if TYPE_CHECKING:
    from daytona import CreateSandboxFromImageParams, Daytona, Sandbox

log = logging.getLogger(__name__)
T = TypeVar("T")

_API = "https://app.daytona.io/api"
_ASK_S = 20.0
_REMOVE_S = 30.0
_FIND_S = 60.0
"""How long the service is asked anew before it counts as one that does not answer, seconds."""
_MINUTE_S = 60.0
_PAUSE_S = (0.5, 30.0)
"""Between tries: at first and at most, seconds."""
_INLINE_BYTES = 60_000
"""Longest input that goes in a command, which Linux limits to 128 KiB; a longer one is a file."""
_PASSING = {429, 500, 502, 503, 504}
# The API has no code of its own for it; what one sandbox asks too much of never comes to fit.
_QUOTA = re.compile(r"quota|limit (exceeded|reached)|(?<!per sandbox) exceeded", re.IGNORECASE)
_NEVER = re.compile(r"per sandbox|per-sandbox", re.IGNORECASE)


def check(config: SandboxConfig) -> None:
    """Asks the API for the sandboxes of no run, and for the quota.

    Raises UserError for a missing or refused key, a service that does not answer and a quota of 0.
    """
    key = _key(config)
    _found(_client(config), "nobody", key)
    if _no_quota(key):
        raise UserError(
            "Daytona gives this key's organization a quota of zero CPUs, memory or disk; raise it "
            "in Daytona's dashboard (Limits), or write another key."
        )


@contextmanager
def opened(config: SandboxConfig, label: str) -> Iterator[OpenSandbox]:
    """As :func:`providers.opened`."""
    check(config)
    cloud = _Cloud(config, label)
    cloud.sweep()
    try:
        yield cloud.open
    finally:
        cloud.close()


class _Cloud:
    """Makes and keeps the sandboxes of one run."""

    def __init__(self, config: SandboxConfig, label: str) -> None:
        self.client, self.key = _client(config), _key(config)
        self._label = label
        self._starting = threading.BoundedSemaphore(config.max_starting)
        self._machines: set[_Machine] = set()
        self._ended = threading.Event()
        self._pause_s = config.auto_stop_min * _MINUTE_S / 3
        threading.Thread(target=self._refresh, name="daytona-refresh", daemon=True).start()

    def open(self, task: Task, config: SandboxConfig) -> RemoteSandbox:
        """A sandbox of the task. Raises SandboxError."""
        machine = _Machine(self)
        self._machines.add(machine)
        deadline = time.monotonic() + config.start_timeout_s

        def start() -> None:
            params = self._params(machine.name, task, config)
            with turn(self._starting, deadline):
                machine.start(params, deadline)

        return started(machine, start, task, config)

    def forget(self, machine: "_Machine") -> None:
        """It needs no refreshing any more."""
        self._machines.discard(machine)

    @property
    def ended(self) -> bool:
        """No sandbox may be made any more."""
        return self._ended.is_set()

    def sweep(self) -> None:
        """Removes every sandbox with the run's label. Raises UserError if it cannot look."""
        found = _found(self.client, self._label, self.key)
        with ThreadPoolExecutor(16) as pool:
            for _ in pool.map(self.remove, found):
                pass

    def remove(self, name: str) -> None:
        """Deletes a sandbox, if there is one of the name. What cannot be is told in the log."""
        from daytona import DaytonaNotFoundError

        def attempt() -> None:
            with suppress(DaytonaNotFoundError):
                self.client.get(name, request_timeout=_ASK_S).delete(timeout=_ASK_S)

        deadline = time.monotonic() + _REMOVE_S
        try:
            # Busy with a change of state, as while it starts, it cannot be deleted yet.
            _retried(attempt, deadline, self.key, passing=_PASSING | {400, 409})
        except SandboxError as error:
            log.warning("Daytona sandbox %s is not deleted (%s); it deletes itself", name, error)

    def close(self) -> None:
        """Ends every sandbox of the run."""
        self._ended.set()
        try:
            self.sweep()
        except UserError as error:
            log.warning("%s What is left deletes itself.", error)

    def _refresh(self) -> None:
        # The policy may think for longer than a sandbox may be idle.
        while not self._ended.wait(self._pause_s):
            for machine in list(self._machines):
                machine.refresh()

    def _params(
        self, name: str, task: Task, config: SandboxConfig
    ) -> "CreateSandboxFromImageParams":
        from daytona import CreateSandboxFromImageParams, Image, Resources

        if task.docker_image:
            image = Image.base(task.docker_image)
        else:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "Dockerfile"
                path.write_text(inlined(task.environment))
                image = Image.from_dockerfile(path)
        memory_mb = config.memory_mb or task.memory_mb
        disk_mb = config.disk_mb or task.storage_mb
        return CreateSandboxFromImageParams(
            name=name,
            image=image,
            labels={RUN_LABEL: self._label, "task": task.id},
            resources=Resources(
                cpu=math.ceil(task.cpus),
                memory=math.ceil(memory_mb / 1024),
                disk=math.ceil(disk_mb / 1024),
            ),
            auto_stop_interval=config.auto_stop_min,
            auto_delete_interval=0,  # with its stop
        )


class _Machine:
    """A :class:`remote.Machine`: a sandbox known by its name, from before it exists."""

    def __init__(self, cloud: _Cloud) -> None:
        self.name = new_name()
        self._cloud = cloud
        self._sandbox: Sandbox | None = None
        self._closed = False

    def start(self, params: "CreateSandboxFromImageParams", deadline: float) -> None:
        """Makes it, with retries until `deadline`. Raises SandboxError."""
        from daytona import DaytonaNotFoundError

        client, tried = self._cloud.client, False

        def attempt() -> "Sandbox":
            nonlocal tried
            left = max(deadline - time.monotonic(), 1.0)
            if self._closed or self._cloud.ended:
                raise SandboxError("the sandbox is closed")
            if tried:  # what failed may have been the answer only
                with suppress(DaytonaNotFoundError):
                    sandbox = client.get(self.name, request_timeout=_ASK_S)
                    sandbox.wait_for_sandbox_start(timeout=left)
                    return sandbox
            tried = True
            return client.create(params, timeout=left)

        self._sandbox = _retried(attempt, deadline, self._cloud.key, quota=True, lost=True)

    def run(self, command: Sequence[str], data: bytes, timeout_s: float) -> bytes:
        """As :meth:`Machine.run`."""
        sandbox = self._sandbox
        assert sandbox is not None
        line = shlex.join(command)
        if len(data) > _INLINE_BYTES:
            path = f"/tmp/.input-{secrets.token_hex(8)}"
            self._passed(lambda: sandbox.fs.upload_file(data, path, timeout=math.ceil(timeout_s)))
            line = f"{line} <{path}; code=$?; rm -f {path}; exit $code"
        elif data:
            line = f"printf %s '{base64.b64encode(data).decode()}' | base64 -d | {line}"
        else:
            line += " </dev/null"
        # The answer holds both outputs as one.
        line = f"{{ {line}; }} 2>/dev/null"
        done = self._passed(lambda: sandbox.process.exec(line, timeout=math.ceil(timeout_s)))
        # It may have been killed inside: then what it printed is not whole.
        if done.exit_code in (0, 137, -1):
            return done.result.encode() if done.exit_code == 0 else b""
        raise SandboxError(f"exit code {done.exit_code}: {done.result[-500:].strip() or 'no word'}")

    def _passed(self, call: Callable[[], T]) -> T:
        """What a call inside gives; it is repeated only when it was not let in."""
        return _retried(call, time.monotonic() + _REMOVE_S, self._cloud.key, passing={429})

    def refresh(self) -> None:
        """A sign of life, which puts its stop off."""
        from daytona import DaytonaError

        if self._sandbox is not None:
            with suppress(DaytonaError):
                self._sandbox.refresh_activity(request_timeout=_ASK_S)

    def close(self) -> None:
        """As :meth:`Machine.close`."""
        self._cloud.forget(self)
        if not self._closed:
            self._closed = True
            self._cloud.remove(self.name)


def _client(config: SandboxConfig) -> "Daytona":
    from daytona import Daytona, DaytonaConfig

    # The region is the client's to find: DAYTONA_TARGET.
    return Daytona(DaytonaConfig(api_key=_key(config), api_url=_address()))


def _address() -> str:
    address = (os.environ.get("DAYTONA_API_URL") or _API).rstrip("/")
    if not address.startswith(("http://", "https://")):
        raise UserError(
            "DAYTONA_API_URL does not start with http:// or https://; write Daytona's address "
            f"there, as {_API}, or unset it."
        )
    return address


def _key(config: SandboxConfig) -> str:
    if config.api_key_file is None:
        if key := os.environ.get("DAYTONA_API_KEY", "").strip():
            return _one_word(key, "DAYTONA_API_KEY")
        raise UserError(
            "sandbox.provider=daytona needs a key: set DAYTONA_API_KEY, or write it to a file and "
            "its path to sandbox.api_key_file; or write sandbox=local."
        )
    try:
        if key := resolve(config.api_key_file).read_text().strip():
            return _one_word(key, "The file of sandbox.api_key_file")
        reason = "it is empty"
    except RuntimeError:
        reason = "there is no such user"
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
    raise UserError(
        f"sandbox.api_key_file is {config.api_key_file}, which holds no key ({reason}); write "
        "Daytona's API key there."
    )


def _one_word(key: str, where: str) -> str:
    # No header carries another, and the client's complaint would quote it.
    if not re.fullmatch("[!-~]+", key):
        raise UserError(
            f"{where} holds more than a key: a line break, a space or a sign that is not ASCII; "
            "write Daytona's API key alone there."
        )
    return key


def _said(error: Exception, key: str) -> str:
    """What an error says, without the key, which a server may have echoed."""
    return str(error).replace(key, "(key)")


def _found(client: "Daytona", label: str, key: str) -> list[str]:
    """Names of the sandboxes of a run.

    Raises UserError for a key that is refused, and for a service that does not answer for a while.
    """
    from daytona import DaytonaError, ListSandboxesQuery

    query = ListSandboxesQuery(labels={RUN_LABEL: label})

    def ask() -> list[str]:
        try:
            return [sandbox.name for sandbox in client.list(query, request_timeout=_ASK_S)]
        except DaytonaError as error:
            if error.status_code not in (401, 403):
                raise
            said = _line(_said(error, key))
            raise UserError(
                f"Daytona refuses the API key ({said}): it is wrong, expired or lacks the right to "
                "make and delete sandboxes; set DAYTONA_API_KEY, or sandbox.api_key_file, to "
                "another."
            ) from None

    try:
        return _retried(ask, time.monotonic() + _FIND_S, key, lost=True)
    except SandboxError as error:
        raise UserError(
            f"Daytona does not answer at {_address()} ({_line(str(error))}); look at the network "
            "and at DAYTONA_API_URL, or write sandbox=local."
        ) from None


def _retried(
    call: Callable[[], T],
    deadline: float,
    key: str,
    *,
    passing: set[int] = _PASSING,
    quota: bool = False,
    lost: bool = False,
) -> T:
    """What `call` gives, repeated with growing pauses while its error may pass, until `deadline`.

    `passing`: HTTP status codes that may pass; with `quota` also a full quota, with `lost` also a
    connection that is lost. Raises SandboxError, which does not tell the `key`.
    """
    from daytona import DaytonaConnectionError, DaytonaError

    pause_s, most_s = _PAUSE_S
    while True:
        try:
            return call()
        except DaytonaError as error:
            said = _said(error, key)[-2000:]
            full = quota and bool(_QUOTA.search(said)) and not _NEVER.search(said)
            gone = lost and isinstance(error, DaytonaConnectionError)
            may_pass = error.status_code in passing or (full and error.status_code) or gone
            wait_s = max(pause_s * random.uniform(0.5, 1.0), _retry_after(error))
            if not may_pass or time.monotonic() + wait_s > deadline:
                raise SandboxError(said or type(error).__name__) from None
        time.sleep(wait_s)
        pause_s = min(2 * pause_s, most_s)


def _retry_after(error: Any) -> float:
    value = {str(k).lower(): v for k, v in error.headers.items()}.get("retry-after", "")
    return float(value) if str(value).isdigit() else 0.0


def _line(said: str) -> str:
    """The end of what was said, as part of a sentence."""
    return " ".join(said.split())[-200:].rstrip(".")


def _no_quota(key: str) -> bool:
    """Whether every organization that the key may look at has a quota of 0 of something."""

    def asked(path: str) -> Any:
        request = urllib.request.Request(
            f"{_address()}{path}", headers={"Authorization": f"Bearer {key}"}
        )
        with urllib.request.urlopen(request, timeout=_ASK_S) as answer:
            return json.load(answer)

    quotas: list[bool] = []
    # Not every key may ask; then the first creation tells.
    with suppress(OSError, ValueError, KeyError, TypeError):
        for organization in asked("/organizations"):
            for region in asked(f"/organizations/{organization['id']}/usage")["regionUsage"]:
                kinds = ("totalCpuQuota", "totalMemoryQuota", "totalDiskQuota")
                quotas.append(any(region[kind] == 0 for kind in kinds))
    return bool(quotas) and all(quotas)
