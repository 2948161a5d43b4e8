"""Where the project's own folders are."""

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
