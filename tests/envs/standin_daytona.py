"""Stands in for Daytona's API and toolbox at the HTTP boundary, with the official client before it.

Its sandboxes are bubblewrap's, so commands really run. What the service may do wrong is ordered
with :meth:`StandInDaytona.fault`, `build_s`, `max_sandboxes` and :meth:`StandInDaytona.lose`.
"""

import json
import re
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, field
from email.message import Message
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from glm52_tbench2.envs.sandbox import SandboxError

from .standin_container import Container

KEY = "dtn_key_of_the_stand_in"


@dataclass
class Fault:
    """An answer in place of the right one."""

    asked: str
    """Regular expression on METHOD PATH."""
    status: int
    message: str
    times: int
    headers: dict[str, str]
    after: bool
    """Whether the request does its work, and only its answer is lost."""
    hang_s: float


@dataclass
class Machine:
    """A sandbox as the API shows it."""

    name: str
    labels: dict[str, str]
    asked: dict[str, Any]
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    state: str = "pending_build"
    reason: str = ""
    container: Container | None = None


class StandInDaytona:
    """The service. `url` is what DAYTONA_API_URL takes."""

    def __init__(self) -> None:
        self.machines: dict[str, Machine] = {}
        """Everything that would cost money, by id."""
        self.asked: list[str] = []
        """METHOD PATH of every request."""
        self.created: list[dict[str, Any]] = []
        """Body of every creation that was let in."""
        self.most_building = 0
        self.reset()
        self.lock = threading.RLock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.origin = f"http://127.0.0.1:{self._server.server_port}"
        self.url = f"{self.origin}/api"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def reset(self) -> None:
        """Everything works."""
        self.faults: list[Fault] = []
        self.build_s = 0.0
        self.max_sandboxes = 1000
        self.quota = 100
        """CPUs, memory and disk of the organization."""

    def fault(
        self,
        asked: str,
        status: int,
        message: str = "injected",
        *,
        times: int = 1,
        after: bool = False,
        hang_s: float = 0.0,
        **headers: str,
    ) -> None:
        """Answers the next `times` requests that match with an error."""
        self.faults.append(Fault(asked, status, message, times, headers, after, hang_s))

    def lose(self) -> None:
        """Every sandbox is gone from one moment to the next."""
        for machine in list(self.machines.values()):
            self._delete(machine)

    def close(self) -> None:
        """Ends the service with all its sandboxes."""
        self.lose()
        self._server.shutdown()
        self._server.server_close()

    # The API

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: bytes) -> Any:
        """(status, JSON) of a request."""
        if path.startswith("/toolbox/"):
            _, _, machine_id, *rest = path.split("/")
            machine = self.machines.get(machine_id)
            if machine is None or machine.container is None:
                return 404, {"message": f"sandbox {machine_id} not found"}
            return self._toolbox(machine, "/".join(rest), body)
        parts = path.removeprefix("/api/").split("/")
        if parts == ["organizations"]:
            return 200, [{"id": "org"}]
        if parts == ["organizations", "org", "usage"]:
            kinds = ("totalCpuQuota", "totalMemoryQuota", "totalDiskQuota")
            return 200, {"regionUsage": [dict.fromkeys(kinds, self.quota)]}
        if parts == ["sandbox"]:
            return self._list(query) if method == "GET" else self._create(json.loads(body))
        if parts[0] == "sandbox":
            machine = self._find(unquote(parts[1]))
            if machine is None:
                return 404, {"message": f"Sandbox with ID or name {parts[1]} not found"}
            if method == "DELETE":
                self._delete(machine)
                return 200, self._shown(machine)
            if parts[2:] == ["last-activity"]:
                return 200, None
            return 200, self._shown(machine)
        return 404, {"message": f"Cannot {method} {path}"}

    def _find(self, name: str) -> Machine | None:
        with self.lock:
            found = [m for m in self.machines.values() if name in (m.id, m.name)]
        return found[0] if found else None

    def _list(self, query: dict[str, list[str]]) -> Any:
        labels = json.loads(query.get("labels", ["{}"])[0])
        with self.lock:
            found = [m for m in self.machines.values() if labels.items() <= m.labels.items()]
        return 200, {"items": [self._shown(one) for one in found], "nextCursor": None}

    def _create(self, asked: dict[str, Any]) -> Any:
        with self.lock:
            if len(self.machines) >= self.max_sandboxes:
                return 403, {"message": "Total CPU limit exceeded. Maximum allowed: 4."}
            if self._find(asked["name"]):
                return 409, {"message": f"Sandbox with name {asked['name']} already exists"}
            machine = Machine(asked["name"], asked.get("labels") or {}, asked)
            self.machines[machine.id] = machine
            self.created.append(asked)
            building = sum(one.state == "pending_build" for one in self.machines.values())
            self.most_building = max(self.most_building, building)
        threading.Thread(target=self._build, args=(machine,), daemon=True).start()
        return 200, self._shown(machine)

    def _build(self, machine: Machine) -> None:
        time.sleep(self.build_s)
        try:
            with tempfile.TemporaryDirectory() as folder:
                text = machine.asked["buildInfo"]["dockerfileContent"]
                (Path(folder) / "Dockerfile").write_text(text)
                container = Container(Path(folder))
        except SandboxError as error:
            machine.reason, machine.state = f"build failed: {error}", "build_failed"
            return
        with self.lock:
            if machine.id in self.machines:
                machine.container, machine.state = container, "started"
                return
        container.close()

    def _delete(self, machine: Machine) -> None:
        with self.lock:
            self.machines.pop(machine.id, None)
            machine.state = "destroyed"
        if machine.container is not None:
            machine.container.close()

    def _shown(self, machine: Machine) -> dict[str, Any]:
        return {
            "id": machine.id,
            "organizationId": "org",
            "name": machine.name,
            "user": "root",
            "env": {},
            "labels": machine.labels,
            "public": False,
            "networkBlockAll": False,
            "kvm": False,
            "target": "us",
            "cpu": 1,
            "gpu": 0,
            "memory": 1,
            "disk": 1,
            "state": machine.state,
            "errorReason": machine.reason,
            "toolboxProxyUrl": f"{self.origin}/toolbox",
        }

    def _toolbox(self, machine: Machine, path: str, body: bytes) -> Any:
        assert machine.container is not None
        if path == "process/execute":
            command = json.loads(body)["command"]
            if len(command) >= 128 * 1024:
                return 400, {"message": "argument list too long"}
            code, out, err = machine.container.run(["sh", "-c", command], b"")
            if machine.container.closed.is_set():
                return 404, {"message": "sandbox not found"}
            return 200, {"exitCode": code, "result": (out + err).decode(errors="replace")}
        return 404, {"message": f"no {path}"}

    def upload(self, machine_id: str, kind: str, body: bytes) -> Any:
        """The toolbox's files/bulk-upload."""
        container = self.machines[machine_id].container
        assert container is not None
        parsed = BytesParser().parsebytes(f"Content-Type: {kind}\r\n\r\n".encode() + body)
        fields: dict[str, bytes] = {}
        for part in parsed.get_payload():
            assert isinstance(part, Message)
            name = str(part.get_param("name", header="content-disposition"))
            data = part.get_payload(decode=True)
            assert isinstance(data, bytes)
            fields[name] = data
        path = fields["files[0].path"].decode()
        code, _, err = container.run(["sh", "-c", f"cat > '{path}'"], fields["files[0].file"])
        return (200, None) if code == 0 else (500, {"message": err.decode()})


def _handler(service: StandInDaytona) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            url = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if not body and "chunked" in self.headers.get("Transfer-Encoding", ""):
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            asked = f"{self.command} {url.path}"
            with service.lock:
                service.asked.append(asked)
                fault = next(
                    (f for f in service.faults if f.times > 0 and re.search(f.asked, asked)), None
                )
                if fault is not None:
                    fault.times -= 1
            if self.headers.get("Authorization") != f"Bearer {KEY}":
                self._send(401, {"message": "Invalid credentials"}, {})
                return
            if fault is None or fault.after:
                status, told = self._done(url.path, parse_qs(url.query), body)
                headers: dict[str, str] = {}
            if fault is not None:
                time.sleep(fault.hang_s)
                status, told, headers = fault.status, {"message": fault.message}, fault.headers
            self._send(status, told, headers)

        def _done(self, path: str, query: dict[str, list[str]], body: bytes) -> Any:
            if path.endswith("/files/bulk-upload"):
                kind = self.headers["Content-Type"]
                return service.upload(path.split("/")[2], kind, body)
            return service.answer(self.command, path, query, body)

        def _send(self, status: int, told: Any, headers: dict[str, str]) -> None:
            data = b"" if told is None else json.dumps(told).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

        do_GET = do_POST = do_PUT = do_DELETE = _handle

    return Handler
