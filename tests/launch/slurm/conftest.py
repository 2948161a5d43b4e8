import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .cluster import Cluster, there


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Four nodes, their commands in this process's environment. Fails where Slurm is missing."""
    assert there(), "Slurm's tests need root and slurm-wlm: make test installs it"
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        found = Cluster(Path(folder))
        before = os.environ.get("SLURM_CONF")
        os.environ["SLURM_CONF"] = found.env["SLURM_CONF"]
        try:
            found.start()
            yield found
        finally:
            found.stop()
            del os.environ["SLURM_CONF"]
            if before is not None:
                os.environ["SLURM_CONF"] = before
