"""Where the project's own folders are."""

import hashlib
import os
import re
import shlex
import shutil
import sys
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
DATA = ROOT / "data"


def resolve(path: str | Path) -> Path:
    """The absolute path of one written in a config: relative to the repository, or as it is."""
    path = Path(path).expanduser()
    return path if path.is_absolute() else ROOT / path


def label_of(path: Path) -> str:
    """A label for what belongs to `path`: the same each time, and another for each user."""
    where = f"{os.getuid()} {path.resolve()}"
    name = re.sub(r"[^\w.-]", "-", path.name)
    return f"{name[:40]}-{hashlib.sha256(where.encode()).hexdigest()[:12]}"


def of_run(folder: str, run_dir: Path) -> Path:
    """A run's folder of what a config names: in the run folder unless that is absolute.

    An absolute one may be that of several runs, of which two may have one name.
    """
    return Path(folder) / label_of(run_dir) if Path(folder).is_absolute() else run_dir / folder


def short(path: Path) -> str:
    """As a person would write it from here."""
    with suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def command(*words: str | Path) -> str:
    """The line `glm52 WORDS` for a shell as this one: by its path where glm52 is not on PATH."""
    glm52 = "glm52" if shutil.which("glm52") else Path(sys.executable).with_name("glm52")
    told = (short(word) if isinstance(word, Path) else word for word in (glm52, *words))
    return shlex.join(told)
