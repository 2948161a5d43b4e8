import pytest

from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.schema import RunConfig


@pytest.fixture
def smoke(tmp_path) -> RunConfig:
    """The smoke experiment, with its run folders in a temporary place."""
    return compose(["experiment=smoke", f"runs_dir={tmp_path / 'runs'}"])
