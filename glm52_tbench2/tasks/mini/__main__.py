"""`python -m glm52_tbench2.tasks.mini` writes data/mini anew."""

from ...config.paths import DATA
from .generate import build

if __name__ == "__main__":
    build(DATA / "mini")
