from pathlib import Path

import pytest

from glm52_tbench2.config.schema import RunConfig

from .parts import SPARSE, Ranks, save_start_weights, small_run


@pytest.fixture(scope="session")
def start_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with random weights in HF format."""
    folder = tmp_path_factory.mktemp("start-weights")
    save_start_weights(small_run(), folder)
    return folder


@pytest.fixture(scope="session")
def run(start_weights: Path) -> RunConfig:
    """One rank, without engines: batches are recorded."""
    config = small_run(f"model.path={start_weights}")
    config.engine.num_engines = 0
    return config


@pytest.fixture(scope="session")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """The same with sparse attention."""
    folder = tmp_path_factory.mktemp("sparse-weights")
    config = small_run(*SPARSE, f"model.path={folder}")
    save_start_weights(config, folder)
    config.engine.num_engines = 0
    return config


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """Processes that play trainer ranks."""
    return Ranks(tmp_path_factory.mktemp("ranks"))
