"""Stands in for a container, where there is no engine: a bubblewrap sandbox made from a Dockerfile.

Unlike in the local sandbox, /tests and /logs are ordinary folders that every process may write.
"""

import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from glm52_tbench2.envs.dockerfile import read_recipe
from glm52_tbench2.envs.namespace import TRUSTED_ENV, Namespace
from glm52_tbench2.envs.sandbox import SandboxError

_WRITABLE = "mount -o remount,bind,rw /tests && mount -o remount,bind,rw /logs"


class Container:
    """A running container. Raises SandboxError, with what was printed, when it cannot be made."""

    def __init__(self, environment: Path, disk_mb: int = 64) -> None:
        recipe = read_recipe(environment)
        self.env = recipe.env
        self.namespace = Namespace(disk_mb)
        self.closed = threading.Event()
        try:
            self._made(["/usr/bin/bash", "-c", _WRITABLE], b"", trusted=True)
            # As input, because an argument may not be longer than 128 KiB; the payload follows.
            script = f"build() {{\n{recipe.script}\ntrue\n}}\nbuild; exit\n".encode()
            self._made(["/usr/bin/bash", "-s"], script + recipe.payload)
        except BaseException:
            self.close()
            raise

    def _made(self, command: Sequence[str], data: bytes, trusted: bool = False) -> None:
        process = self.namespace.enter(
            command,
            TRUSTED_ENV if trusted else self.env,
            trusted=trusted,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said, _ = process.communicate(data)
        if process.returncode != 0:
            raise SandboxError(said.decode(errors="replace"))

    def run(self, command: Sequence[str], data: bytes) -> tuple[int, bytes, bytes]:
        """Runs a program: exit code, standard output and standard error."""
        process = self.namespace.enter(
            ["/usr/bin/env", *command],
            self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = process.communicate(data)
        code = process.returncode
        return (code if code >= 0 else 128 - code), out, err

    def close(self) -> None:
        """Ends everything in it."""
        self.closed.set()
        self.namespace.close()
