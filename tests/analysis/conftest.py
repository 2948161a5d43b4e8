"""Runs to read, written once a session."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from .fake_run import FakeRun, byte_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return byte_tokenizer()


@pytest.fixture(scope="session")
def finished_run(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A healthy run of 25 steps. Read only."""
    folder = tmp_path_factory.mktemp("finished")
    return FakeRun(folder / "smoke-1129-1423", tokenizer, steps=25).write()


@pytest.fixture
def write_run(tokenizer: Tokenizer, tmp_path: Path) -> Callable[..., Path]:
    """Writes a run of 4 steps that came as far as `upto`."""

    def write(upto: int, **changes: object) -> Path:
        run = FakeRun(tmp_path / "run", tokenizer, steps=4, **changes)  # type: ignore[arg-type]
        return run.write(upto=upto, eval_every=2, finished=False)

    return write
