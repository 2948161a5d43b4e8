"""Writes every composition's resolved config anew: make golden. Review the difference in git."""

from pathlib import Path

from glm52_tbench2.config.compose import compose, to_yaml
from glm52_tbench2.config.paths import CONF

FOLDER = Path(__file__).parent
COMPOSITIONS = {
    "reference": [],
    **{
        path.stem: [f"experiment={path.stem}"]
        for path in sorted((CONF / "experiment").glob("*.yaml"))
    },
}
"""Golden file -> overrides."""


def main() -> None:
    for path in FOLDER.glob("*.yaml"):
        path.unlink()
    for name, overrides in COMPOSITIONS.items():
        (FOLDER / f"{name}.yaml").write_text(to_yaml(compose(overrides)))


if __name__ == "__main__":
    main()
