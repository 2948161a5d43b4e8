"""A real run under chaos: its command, its processes, and what is left of it."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from glm52_tbench2.config.paths import ROOT
from glm52_tbench2.config.signals import STORE_VARIABLE
from glm52_tbench2.engines.launch import scratch_dir

DEADLINE_S = 420.0
"""Nothing that is waited for takes this long on two busy cores."""
ROLES = {
    "env": "glm52_tbench2.envs.server",
    "engine": "glm52_tbench2.engines.launch",
    "driver": "glm52_tbench2.rollout.driver",
    "trainer": "glm52_tbench2.trainer.main",
}
_SHM = Path("/dev/shm")


class Job:
    """One run in `folder`/runs, started and resumed with the `glm52` command.

    A context: at its end nothing of it runs, whatever happened.
    """

    def __init__(
        self,
        folder: Path,
        overrides: Sequence[str],
        env: Mapping[str, str] | None = None,
        disk: Path | None = None,
    ) -> None:
        """`disk`: where the run folder is made; None: in `folder`."""
        self.runs_dir = (disk or folder) / "runs"
        self._output = folder / "output.txt"
        self._overrides, self._env = overrides, {**os.environ, **(env or {})}
        self._seen: set[psutil.Process] = set()
        self._shm = set(_SHM.iterdir())
        self._supervisor: psutil.Popen | None = None
        self._over = threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Job":
        self._start("train", *self._overrides, f"runs_dir={self.runs_dir}")
        self._watching.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._watching.join()
        for process in [*self._seen, *([self._supervisor] if self._supervisor else [])]:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    # --- the run ---------------------------------------------------------------------------------

    @property
    def run_dir(self) -> Path:
        (found,) = (path for path in self.runs_dir.iterdir() if (path / "config.yaml").exists())
        return found

    @property
    def alive(self) -> bool:
        return self._supervisor is not None and self._supervisor.poll() is None

    @property
    def steps(self) -> int:
        """Batches there are."""
        return len(list(self.run_dir.glob("rollouts/step_*.parquet")))

    @property
    def said(self) -> str:
        """All that the command has printed."""
        return self._output.read_text(errors="replace")

    @property
    def events(self) -> list[str]:
        """What the supervisor has noted."""
        log = self.run_dir / "logs" / "supervisor.log"
        return log.read_text().splitlines() if log.exists() else []

    def wait_until_ready(self) -> None:
        """Until every role was ready once: the end of one that never was fails the run."""
        self.wait_until(lambda: len(self._ready()) == len(ROLES), "every role ready")

    def resume(self) -> None:
        self._start("resume", str(self.run_dir))

    def ended(self) -> int:
        """The exit code, once the command has ended."""
        assert self._supervisor is not None
        code = self._supervisor.wait(DEADLINE_S)
        # Of a killed one, the guards need a moment.
        until = time.monotonic() + 30
        while self.left() and time.monotonic() < until:
            time.sleep(0.2)
        return code

    def kill(self) -> None:
        """kill -9 of the supervisor."""
        assert self._supervisor is not None
        self._supervisor.kill()

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Raises AssertionError when the run ends before, or it takes too long."""
        until = time.monotonic() + DEADLINE_S
        while not holds():
            assert self.alive, f"the run ended before {what}:\n{self.said[-3000:]}"
            assert time.monotonic() < until, f"never {what}:\n{self.said[-3000:]}"
            time.sleep(0.1)

    def _start(self, *arguments: str) -> None:
        self._output.parent.mkdir(parents=True, exist_ok=True)
        with self._output.open("ab") as output:
            self._supervisor = psutil.Popen(
                [sys.executable, "-m", "glm52_tbench2.cli", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._env,
                cwd=ROOT,
            )

    def _ready(self) -> set[str]:
        with suppress(OSError, ValueError):  # there is no run folder yet
            return {event.split()[2] for event in self.events if " ready after " in event}
        return set()

    # --- its processes ---------------------------------------------------------------------------

    def role(self, name: str) -> psutil.Process | None:
        """A role's own process now, below its guard."""
        assert self._supervisor is not None
        with suppress(psutil.NoSuchProcess):
            for guard in self._supervisor.children():
                if ROLES[name] in guard.cmdline():
                    # Orphans come to the guard too.
                    return min(guard.children(), key=lambda p: p.create_time(), default=None)
        return None

    def store(self) -> str | None:
        """The address of the job's signals now."""
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            driver = self.role("driver")
            return driver.environ().get(STORE_VARIABLE) if driver else None
        return None

    def left(self) -> list[str]:
        """What is left of a run that has ended: processes, sandboxes, memory, scratch folders."""
        found = []
        for process in list(self._seen):
            with suppress(psutil.NoSuchProcess):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"process {process.pid} ({process.name()})")
        if (scratch := scratch_dir(self.run_dir, 0)).exists():
            found.append(f"folder {scratch}")
        new = [path for path in _SHM.iterdir() if path not in self._shm and self._ours(path)]
        used = {mapped for p in psutil.process_iter() for mapped in _mapped(p)} if new else set()
        return found + [f"memory {path}" for path in new if path.exists() and str(path) not in used]

    def _ours(self, memory: Path) -> bool:
        """Not when it names another process: those of others on this machine are theirs."""
        owner = re.match(r"torch_(\d+)_", memory.name)
        return owner is None or int(owner[1]) in {process.pid for process in list(self._seen)}

    def _watch(self) -> None:
        """Gathers every process that was ever below the supervisor."""
        while not self._over.wait(0.25):
            with suppress(psutil.NoSuchProcess):
                if self._supervisor is not None:
                    self._seen.update(self._supervisor.children(recursive=True))


def _mapped(process: psutil.Process) -> list[str]:
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess, OSError):
        opened = [file.path for file in process.open_files()]
        return opened + [region.path for region in process.memory_maps()]
    return []
