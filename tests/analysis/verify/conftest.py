"""The same run twice, written once a session."""

import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from .runs import make


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def first(tokenizer: Tokenizer, runs: Path) -> Path:
    """Read only."""
    return make(runs / "smoke-1", tokenizer)


@pytest.fixture(scope="session")
def second(tokenizer: Tokenizer, runs: Path) -> Path:
    """The same run, made again. Read only."""
    return make(runs / "smoke-2", tokenizer)


@pytest.fixture
def copy(second: Path, tmp_path: Path) -> Path:
    """The second run, free to be changed."""
    return Path(shutil.copytree(second, tmp_path / "copy"))
