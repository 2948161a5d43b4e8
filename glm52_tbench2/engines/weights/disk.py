"""Weights through a folder that trainer and engines see."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from glm52_tbench2.config.schema import RunConfig

from ..client import LOAD_TIMEOUT_S
from .folders import publish, weights_dir
from .sender import Sender, Target, Tensors, each


class DiskSender(Sender):
    """Publishes each version in a folder of its own, from which an engine can also start."""

    def __init__(self, config: RunConfig, start: Path, run_dir: Path) -> None:
        super().__init__(config, start)
        self._folder = weights_dir(config, run_dir)
        self._published: tuple[int, Path] | None = None

    async def prepare(
        self, targets: list[Target], tensors: Tensors, version: int
    ) -> Callable[[], Awaitable[None]]:
        """Publishes the version, once. Raises OSError too."""
        # The starting weights need no copy, unless the engines want them in fp8.
        start_will_do = version == 0 and not self.config.engine.dtype.startswith("fp8")
        folder = self.start if start_will_do else self._publish(tensors, version)
        body = {"model_path": str(folder.resolve()), "flush_cache": False}

        async def load_one(target: Target) -> None:
            await target.client.post("/update_weights_from_disk", body, LOAD_TIMEOUT_S)

        async def load() -> None:
            await each(targets, load_one)

        return load

    def _publish(self, tensors: Tensors, version: int) -> Path:
        # Not again when a push is repeated: an engine may be starting from it.
        if self._published is None or self._published[0] != version:
            dtype = self.config.engine.dtype
            self._published = version, publish(self._folder, tensors, self.start, version, dtype)
        return self._published[1]
