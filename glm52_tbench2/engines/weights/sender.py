"""One update of running engines: what is the same whatever carries the weights.

An engine is paused, loses its version, gets the new weights, gets the new version, and goes on.
One whose update fails anywhere in between stays paused and without a version: it generates nothing
from half a model, and its requests wait for the update that mends it.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from time import perf_counter

import torch

from glm52_tbench2.config.schema import PauseMode, RunConfig

from ..client import LOAD_TIMEOUT_S, EngineClient, EngineError
from .folders import outgoing

BUCKET_TIMEOUT_S = 120.0
"""Longest wait for an engine to load a bucket, seconds."""
_LOOK_S = 2.0

Tensors = Iterable[tuple[str, torch.Tensor]]
"""Every weight by its name in transformers' files, streamed: each is gone when the next comes."""
Bucket = list[tuple[str, torch.Tensor]]


@dataclass
class Target:
    """An engine in the course of an update."""

    client: EngineClient
    pause_s: float = 0.0
    """How long it did not generate, seconds."""
    error: EngineError | None = None
    """Why it did not take the version."""

    def fail(self, reason: str) -> None:
        """Notes why, if nothing has been noted yet."""
        self.error = self.error or EngineError(f"{self.client.url}: {reason}")


class Sender(ABC):
    """Brings engines to a version. Used on the trainer's rank 0 alone."""

    def __init__(self, config: RunConfig, start: Path) -> None:
        """`start` is the folder of the starting weights, whose tensors every version has."""
        self.config, self.start = config, start
        self._paused: dict[str, float] = {}
        """Since when each engine that is paused has been, by perf_counter."""

    def push(self, urls: Sequence[str], tensors: Tensors, version: int) -> list[float]:
        """Makes every engine in `urls` serve `version`; seconds each did not generate, those since
        a push that failed included.

        in_place keeps the KV cache of running requests, which then goes on under the new weights,
        and drops what is cached when there are none; retract drops all of it. Idempotent, and
        mends what a failed push has left. Takes only as many `tensors` as it sends. Raises
        EngineError that names each engine which does not serve `version` afterwards; ValueError
        when the tensors are not those of the starting weights.
        """
        return asyncio.run(self._push(urls, tensors, version))

    @abstractmethod
    async def prepare(
        self, targets: list[Target], tensors: Tensors, version: int
    ) -> Callable[[], Awaitable[None]]:
        """Does what can be done while engines generate; returns what loads the paused ones.

        That notes an engine's failure in its target. Raises EngineError while all is as before.
        """

    def buckets(self, tensors: Tensors) -> Iterator[Bucket]:
        """What is sent of them: by engine.dtype, in lists of engine.bucket_bytes at most."""
        engine = self.config.engine
        return buckets(outgoing(tensors, self.start, engine.dtype), engine.bucket_bytes)

    async def _push(self, urls: Sequence[str], tensors: Tensors, version: int) -> list[float]:
        async with AsyncExitStack() as stack:
            clients = [EngineClient(url, LOAD_TIMEOUT_S, retry_s=0) for url in urls]
            targets = [Target(await stack.enter_async_context(client)) for client in clients]
            load = await self.prepare(targets, tensors, version)
            await each(targets, self._pause)
            await load()
            await each(targets, lambda target: self._finish(target, version))
        failures = [str(target.error) for target in targets if target.error]
        if failures:
            raise EngineError(
                f"weight version {version} was not taken by {len(failures)} of {len(urls)} "
                f"engines: {'; '.join(failures)}"
            )
        return [target.pause_s for target in targets]

    async def _pause(self, target: Target) -> None:
        self._paused.setdefault(target.client.url, perf_counter())
        await target.client.pause(self.config.rollout.pause_mode)
        await target.client.set_weight_version(None)

    async def _finish(self, target: Target, version: int) -> None:
        client = target.client
        flushed = await client.flush_cache()
        if self.config.rollout.pause_mode is PauseMode.retract and not flushed:
            raise EngineError(f"{client.url} kept the cache of the weights before")
        await client.set_weight_version(version)
        await client.resume()
        target.pause_s = perf_counter() - self._paused.pop(client.url)
        served = await client.weight_version()
        if served != version:
            raise EngineError(f"{client.url} serves version {served}")


async def each(targets: list[Target], work: Callable[[Target], Awaitable[None]]) -> None:
    """Does `work` for every engine that has not failed, all at once; a failure is noted."""

    async def one(target: Target) -> None:
        try:
            await work(target)
        except EngineError as error:
            target.error = error

    await asyncio.gather(*(one(target) for target in targets if target.error is None))


async def begin(target: Target) -> None:
    """Opens an update in parts."""
    if not await target.client.accepts("/begin_weight_update", {}):  # one was left open
        await end(target)
        await target.client.post("/begin_weight_update", {})


async def end(target: Target) -> None:
    """Closes an update in parts."""
    await target.client.post("/end_weight_update", {}, LOAD_TIMEOUT_S)


def buckets(tensors: Tensors, bucket_bytes: int) -> Iterator[Bucket]:
    """The tensors in lists of at most `bucket_bytes`, in order; a larger unit is a list of its own.

    A unit is one layer's attention, or a single tensor. SGLang stacks some projections of an
    attention into one weight, and drops them silently unless they come in one list.
    Raises ValueError when the tensors of a unit do not follow each other.
    """
    bucket: Bucket = []
    size = 0
    for unit in _units(tensors):
        more = sum(tensor.nbytes for _, tensor in unit)
        if bucket and size + more > bucket_bytes:
            yield bucket
            bucket, size = [], 0
        bucket += unit
        size += more
        unit.clear()
    if bucket:
        yield bucket


def _units(tensors: Tensors) -> Iterator[Bucket]:
    seen = set()
    for unit, members in groupby(tensors, lambda named: _unit(named[0])):
        if unit in seen:
            raise ValueError(f"the tensors of {unit} do not follow each other")
        seen.add(unit)
        yield [(name, tensor.detach()) for name, tensor in members]


def _unit(name: str) -> str:
    layer, attention, _ = name.partition(".self_attn.")
    return f"{layer}.self_attn" if attention else name


def serving(urls: Sequence[str]) -> dict[str, int | None]:
    """The version each engine serves, None for none that counts; without those that don't answer.

    Takes at most two seconds.
    """

    async def ask(url: str) -> dict[str, int | None]:
        async with EngineClient(url, _LOOK_S, retry_s=0) as client:
            try:
                return {url: await asyncio.wait_for(client.weight_version(), _LOOK_S)}
            except (EngineError, TimeoutError):
                return {}

    async def ask_all() -> dict[str, int | None]:
        answers = await asyncio.gather(*map(ask, urls))
        return {url: version for answer in answers for url, version in answer.items()}

    return asyncio.run(ask_all())
