"""Stands in for Docker, where there is no engine: a `docker` on the search path, whose engine lives
in the tests' process and whose containers are bubblewrap's. Knows the commands that we use."""

import argparse
import json
import os
import socket
import struct
import sys
import threading
from contextlib import suppress
from pathlib import Path

from glm52_tbench2.envs.sandbox import SandboxError

from .standin_container import Container

_CLIENT = """#!{python} -IS
import json, socket, struct, sys
data = b"" if sys.argv[1] != "exec" else sys.stdin.buffer.read()
server = socket.socket(socket.AF_UNIX)
try:
    server.connect({path!r})
except OSError:
    sys.exit("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.")
asked = json.dumps(sys.argv[1:]).encode()
server.sendall(struct.pack("II", len(asked), len(data)) + asked + data)
stream = server.makefile("rb")
code, out, err = struct.unpack("III", stream.read(12))
sys.stdout.buffer.write(stream.read(out))
sys.stderr.buffer.write(stream.read(err))
sys.exit(code)
"""


class StandInEngine:
    """The engine. `folder`/docker is the client."""

    def __init__(self, folder: Path) -> None:
        self.images: dict[str, Path] = {}
        """Tag -> folder with its Dockerfile."""
        self.containers: dict[str, Container] = {}
        self.wanted: dict[str, argparse.Namespace] = {}
        self.labels: dict[str, str] = {}
        self.builds: list[str] = []
        self.lock = threading.Lock()
        self.path = f"{folder}:{os.environ['PATH']}"
        """The search path with the client first."""
        path = str(folder / "engine.sock")
        client = folder / "docker"
        client.write_text(_CLIENT.format(python=sys.executable, path=path))
        client.chmod(0o755)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(64)
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Ends the engine with all its containers."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._remove(list(self.containers))

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as stream:
            asked, size = struct.unpack("II", stream.read(8))
            arguments, data = json.loads(stream.read(asked)), stream.read(size)
            try:
                code, out, err = getattr(self, f"_{arguments[0]}")(arguments[1:], data)
            except (SandboxError, KeyError) as error:
                code, out, err = 1, b"", f"Error response from daemon: {error}\n".encode()
            with suppress(OSError):  # of a client that was killed
                client.sendall(struct.pack("III", code, len(out), len(err)) + out + err)

    def _version(self, arguments: list[str], data: bytes) -> tuple[int, bytes, bytes]:
        return 0, b"0-stand-in\n", b""

    def _image(self, arguments: list[str], data: bytes) -> tuple[int, bytes, bytes]:
        return 0, self.images[arguments[-1]].name.encode(), b""

    def _build(self, arguments: list[str], data: bytes) -> tuple[int, bytes, bytes]:
        tag, context = arguments[arguments.index("--tag") + 1], Path(arguments[-1])
        Container(context).close()
        self.images[tag] = context
        self.builds.append(tag)
        return 0, b"", b""

    def _run(self, arguments: list[str], data: bytes) -> tuple[int, bytes, bytes]:
        parser = argparse.ArgumentParser()
        for flag in ("--detach", "--rm", "--init"):
            parser.add_argument(flag, action="store_true")
        for option in ("name", "label", "workdir", "cpus", "memory", "pids-limit", "entrypoint"):
            parser.add_argument(f"--{option}", required=True)
        parser.add_argument("image")
        parser.add_argument("argument")
        wanted = parser.parse_args(arguments)
        container = Container(self.images[wanted.image])
        with self.lock:
            self.containers[wanted.name] = container
            self.labels[wanted.name] = wanted.label
            self.wanted[wanted.name] = wanted
        return 0, f"{wanted.name}\n".encode(), b""

    def _exec(self, arguments: list[str], data: bytes) -> tuple[int, bytes, bytes]:
        name = arguments[1]
        if name not in self.containers:
            return 1, b"", f"Error response from daemon: No such container: {name}\n".encode()
        container = self.containers[name]
        told = container.run(arguments[2:], data)
        return (137, b"", b"") if container.closed.is_set() else told

    def _ps(self, arguments: list[str], data: bytes) -> tuple[int, bytes, bytes]:
        label = arguments[-1].removeprefix("label=")
        found = [name for name, its in self.labels.items() if its == label]
        return 0, "".join(f"{name}\n" for name in found).encode(), b""

    def _rm(self, arguments: list[str], data: bytes) -> tuple[int, bytes, bytes]:
        names = arguments[2:]
        missing = [name for name in names if name not in self.containers]
        self._remove(names)
        return (1, b"", f"No such container: {missing}".encode()) if missing else (0, b"", b"")

    def _remove(self, names: list[str]) -> None:
        for name in names:
            with self.lock:
                container = self.containers.pop(name, None)
                self.labels.pop(name, None)
            if container is not None:
                container.close()
