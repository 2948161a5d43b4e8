"""Weights through memory that trainer and engines share, on one machine."""

import base64
import io
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import torch
import torch.multiprocessing

from glm52_tbench2.config.schema import RunConfig

from .sender import BUCKET_TIMEOUT_S, Bucket, Sender, Target, Tensors, begin, each, end

_ALIGN = 64


class TensorSender(Sender):
    """Hands out names and handles; the engines read the bytes where they lie."""

    def __init__(self, config: RunConfig, start: Path) -> None:
        super().__init__(config, start)
        # The other strategy passes file descriptors, which needs a key that the engine lacks.
        torch.multiprocessing.set_sharing_strategy("file_system")
        with _no_output():
            torch.empty(1).share_memory_()

    async def prepare(
        self, targets: list[Target], tensors: Tensors, version: int
    ) -> Callable[[], Awaitable[None]]:
        """Gathers the first bucket."""
        stream = self.buckets(tensors)
        first = next(stream, [])

        async def load() -> None:
            await each(targets, begin)
            for bucket in chain([first], stream):
                await self._send(targets, bucket)
            await each(targets, end)

        return load

    async def _send(self, targets: list[Target], bucket: Bucket) -> None:
        """Gives all engines a bucket, and empties it."""
        shared = _share(bucket)
        bucket.clear()
        # Of its own for each rank, which releases it.
        handles = [_handles(shared) for _ in range(self.config.engine.ranks_per_engine)]
        body = {"serialized_named_tensors": handles, "flush_cache": False}

        async def send(target: Target) -> None:
            await target.client.post("/update_weights_from_tensor", body, BUCKET_TIMEOUT_S)

        await each(targets, send)


@contextmanager
def _no_output() -> Iterator[None]:
    """Without stderr: torch's manager of shared files starts with the first, and would keep it.

    It lives as long as a process that shares does, and whoever reads our output waits for it.
    """
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _share(bucket: Bucket) -> Bucket:
    """The tensors as parts of one memory that other processes can map."""
    starts, size = [], 0
    for _, tensor in bucket:
        starts.append(size)
        size += -(-tensor.nbytes // _ALIGN) * _ALIGN
    memory = torch.empty(size, dtype=torch.uint8, device=bucket[0][1].device).share_memory_()
    shared = []
    for start, (name, tensor) in zip(starts, bucket, strict=True):
        part = memory[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        shared.append((name, part.copy_(tensor)))
    return shared


def _handles(shared: Bucket) -> str:
    written = io.BytesIO()
    ForkingPickler(written).dump(shared)
    return base64.b64encode(written.getvalue()).decode()
