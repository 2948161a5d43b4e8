"""Weights through a process group of the trainer's rank 0 and every rank of every engine."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from itertools import chain
from pathlib import Path
from uuid import uuid4

import torch.distributed as dist
from torch.distributed import distributed_c10d

from glm52_tbench2.config.schema import Device, RunConfig
from glm52_tbench2.config.signals import Signals

from ..client import EngineClient, EngineError
from .sender import (
    BUCKET_TIMEOUT_S,
    Bucket,
    Sender,
    Target,
    Tensors,
    begin,
    each,
    end,
)

GROUP_TIMEOUT_S = 60.0
"""Longest wait for the engines to join the group, and for one tensor to reach them, seconds."""
_RELEASE_S = 5.0
_GROUP = "weights/group"


class DistributedSender(Sender):
    """Broadcasts buckets of tensors to all engines at once: NCCL between GPUs, gloo on a CPU.

    The group meets in the run's store, so nothing listens that did not before. It is made anew
    when the engines are others or one was restarted, and after a failure.
    """

    def __init__(self, config: RunConfig, start: Path, signals: Signals) -> None:
        super().__init__(config, start)
        self._signals = signals
        cuda = config.engine.device is Device.cuda
        self._backend, self._device = ("nccl", "cuda") if cuda else ("gloo", "cpu")
        self._group: dist.ProcessGroup | None = None
        self._members: list[str] = []
        self._version: int | None = None
        """What the members serve."""

    async def prepare(
        self, targets: list[Target], tensors: Tensors, version: int
    ) -> Callable[[], Awaitable[None]]:
        """Gathers the first bucket, and makes the group if there is none that fits."""
        stream = self.buckets(tensors)
        first = next(stream, [])
        members = [target.client.url for target in targets]
        # An engine that was restarted serves another version, whatever its address.
        known = self._group is not None and members == self._members
        if not known or set(await self._served(targets)) != {self._version}:
            await self._join(targets)

        async def load() -> None:
            await each(targets, begin)
            for bucket in chain([first], stream):
                if any(target.error for target in targets):
                    break
                await self._send(targets, bucket)
            await each(targets, end)
            if any(target.error for target in targets):
                for target in targets:
                    target.fail("another engine failed before the last of the weights")
                await self._leave(targets)
            self._version = version

        return load

    async def _join(self, targets: list[Target]) -> None:
        """Makes a group of this process and all ranks of the targets. Raises EngineError."""
        await self._leave(targets)
        name = f"weights-{uuid4().hex}"  # the keys of a group before must not be read again
        self._signals.publish(_GROUP, name)
        host, port = self._signals.address.rsplit(":", 1)
        ranks = self.config.engine.ranks_per_engine
        world_size = 1 + ranks * len(targets)
        body = {
            "master_address": host,
            "master_port": int(port),
            "world_size": world_size,
            "group_name": name,
            "backend": self._backend,
        }

        async def ask(number: int, target: Target) -> None:
            offset = {"rank_offset": 1 + ranks * number}
            await target.client.post("/init_weights_update_group", body | offset, GROUP_TIMEOUT_S)

        await self._served(targets)  # without one of them the others would wait in vain
        joined, *answers = await asyncio.gather(
            asyncio.to_thread(self._make_group, name, world_size),
            *(ask(number, target) for number, target in enumerate(targets)),
            return_exceptions=True,
        )
        if isinstance(joined, dist.ProcessGroup):
            self._group, self._members = joined, [target.client.url for target in targets]
        failures = [str(error) for error in (*answers, joined) if isinstance(error, Exception)]
        if failures:
            await self._leave(targets)
            raise EngineError(f"the engines did not join the trainer: {'; '.join(failures)}")

    async def _served(self, targets: list[Target]) -> list[int | None]:
        """What each serves. Raises EngineError that names those which do not answer."""
        asked = (target.client.weight_version() for target in targets)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        if failures:
            raise EngineError("; ".join(map(str, failures)))
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    def _make_group(self, name: str, world_size: int) -> dist.ProcessGroup:
        # A connection of its own: while one waits, nobody else is served on it.
        store = dist.PrefixStore(name, Signals.at(self._signals.address).store)
        group, _ = distributed_c10d._new_process_group_helper(
            world_size,
            0,
            [],
            distributed_c10d.Backend(self._backend),
            store,
            distributed_c10d.GroupName(name),
            timeout=timedelta(seconds=GROUP_TIMEOUT_S),
        )
        distributed_c10d._world.pg_group_ranks[group] = {i: i for i in range(world_size)}
        return group

    async def _send(self, targets: list[Target], bucket: Bucket) -> None:
        """Broadcasts a bucket, and empties it. After a failure the group is of no more use."""
        body = {
            "names": [name for name, _ in bucket],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in bucket],
            "shapes": [list(tensor.shape) for _, tensor in bucket],
            "group_name": self._signals.get(_GROUP),
            "flush_cache": False,
        }
        answers = {
            asyncio.ensure_future(
                target.client.post("/update_weights_from_distributed", body, BUCKET_TIMEOUT_S)
            ): target
            for target in targets
        }
        group = self._group
        assert group is not None
        tensors = [tensor.to(self._device).contiguous() for _, tensor in bucket]
        sent: list[dist.Work] = []
        failed: list[Exception] = []

        def broadcast() -> None:
            try:
                sent.extend(group.broadcast(tensor, 0) for tensor in tensors)
            except Exception as error:
                failed.append(error)

        # NCCL's first broadcast waits for the engines, which this loop has yet to ask.
        sending = threading.Thread(target=broadcast, daemon=True)
        sending.start()
        done, waiting = await asyncio.wait(answers, return_when=asyncio.FIRST_EXCEPTION)
        if waiting:
            # One has refused, and takes part in no broadcast: the others would wait for it, and
            # for us who wait for it. It leaves the group, then we do.
            await self._destroy(answers[answer].client.url for answer in done)
            sent.clear()
            self._drop()
            _, waiting = await asyncio.wait(waiting, timeout=_RELEASE_S)
        for answer, target in answers.items():
            if answer in waiting:
                answer.cancel()
                target.fail("no answer after another engine had failed")
            elif isinstance(error := answer.exception(), EngineError):
                target.error = error
            elif error is not None:
                raise error
        if not any(target.error for target in targets):
            await asyncio.to_thread(sending.join)
            if failed:
                raise failed[0]
            for work in sent:
                work.wait()
        bucket.clear()

    async def _leave(self, targets: list[Target]) -> None:
        """Ends the group, here and in every engine that may be in it."""
        await self._destroy({*self._members, *(target.client.url for target in targets)})
        self._drop()
        self._members = []

    def _drop(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.abort()  # NCCL's broadcasts under way; gloo's end with their connections
            # It waits for those of an engine that hangs.
            threading.Thread(target=dist.destroy_process_group, args=(group,), daemon=True).start()

    async def _destroy(self, urls: Iterable[str]) -> None:
        body = {"group_name": self._signals.get(_GROUP) or "none yet"}

        async def destroy(url: str) -> None:
            async with EngineClient(url, _RELEASE_S, retry_s=0) as client:
                with suppress(EngineError):
                    await client.accepts("/destroy_weights_update_group", body, _RELEASE_S)

        await asyncio.gather(*map(destroy, urls))
