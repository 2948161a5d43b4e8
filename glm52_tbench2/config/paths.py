"""Where the project's own folders are."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
DATA = ROOT / "data"


def resolve(path: str | Path) -> Path:
    """The absolute path of one written in a config: relative to the repository, or as it is."""
    path = Path(path).expanduser()
    return path if path.is_absolute() else ROOT / path
