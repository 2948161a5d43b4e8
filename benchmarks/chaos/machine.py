"""What goes wrong with the machine: its disk is full or slow, its clock jumps."""

import mmap
import shutil
import struct
import subprocess
from contextlib import suppress
from pathlib import Path

_SHIM = Path(__file__).with_name("shim.c")


class Controls:
    """Moves the wall clock of a run and slows its disk down, at any moment.

    Every process started with `env` is reached; sandboxes, whose environment is empty, are not.
    Needs gcc.
    """

    def __init__(self, folder: Path) -> None:
        library, page = folder / "shim.so", folder / "controls"
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, _SHIM], check=True)
        page.write_bytes(bytes(16))
        with page.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), 16)
        self.env = {"LD_PRELOAD": str(library), "CHAOS_CONTROLS": str(page)}

    def clock(self, seconds: int) -> None:
        """The run's wall clock is now this far from the real one."""
        self._page[:8] = struct.pack("q", seconds)

    def disk(self, seconds: float) -> None:
        """Each fsync and rename now takes so much longer."""
        self._page[8:] = struct.pack("q", int(seconds * 1e6))


class Disk:
    """A disk of its own, held in memory: a context. Needs root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> "Disk":
        self.folder.mkdir(parents=True)
        self._mount("size=2g")
        return self

    def __exit__(self, *error: object) -> None:
        subprocess.run(["umount", "-l", self.folder], check=True)

    def fill(self) -> None:
        """Leaves no room, as if somebody else had taken all of it."""
        while True:
            used = shutil.disk_usage(self.folder).used
            with suppress(subprocess.CalledProcessError):  # it has grown meanwhile
                return self._mount(f"remount,size={used}")

    def free(self) -> None:
        """Gives the room back."""
        self._mount("remount,size=2g")

    def _mount(self, options: str) -> None:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "chaos", self.folder],
            check=True,
            capture_output=True,
        )
