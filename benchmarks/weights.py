"""Cost of a weight update: python benchmarks/weights.py [--bandwidth GB/S] [OVERRIDE ...]

Starts the engine of experiment=smoke (with overrides, if any) and updates it through every
transport, idle and with requests running. Then computes what an update is of a reference step:
nothing of that is measured but the time a bucket costs beside its bytes, which is this machine's.
"""

import argparse
import asyncio
import math
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import aiohttp
import torch
from engine import Server, generate, served
from safetensors.torch import load_file

from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.paths import resolve
from glm52_tbench2.config.schema import PauseMode, RunConfig, WeightTransport
from glm52_tbench2.config.signals import Signals
from glm52_tbench2.engines.weights.sender import Sender, buckets
from glm52_tbench2.engines.weights.transports import make_sender

UPDATES, RUNNING = 10, 8
SMALL_BUCKET = 2**18
PARAMETERS, STEP_S = 744e9, 390.0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--bandwidth", type=float, default=50.0, help="of rank 0 to the engines, GB/s"
    )
    parser.add_argument("overrides", nargs="*", help="as for glm52 train, after experiment=smoke")
    given = parser.parse_args()
    config = compose(["experiment=smoke", *given.overrides])
    start = resolve(config.model.path)
    tensors: dict[str, torch.Tensor] = {}
    for path in start.glob("*.safetensors"):
        tensors |= load_file(path)
    megabytes = sum(tensor.nbytes for tensor in tensors.values()) / 1e6
    signals, _ = Signals.serve("127.0.0.1")
    with tempfile.TemporaryDirectory() as folder, served(config, Path(folder)) as server:
        print(f"{megabytes:.1f} MB of weights, median of {UPDATES} updates; pause is what counts")
        print("| transport | pause mode | requests | pause, ms | in all, ms |")
        print("|---|---|---|---|---|")
        pauses = {}
        for transport in WeightTransport:
            sender = sender_of(config, Path(folder), signals, transport)
            for mode in PauseMode:
                for requests in (0, RUNNING):
                    found = timed(sender, mode, server, tensors, requests)
                    pauses[transport, mode, requests] = found[0]
                    ms = " | ".join(f"{1e3 * seconds:.0f}" for seconds in found)
                    print(f"| {transport.name} | {mode.name} | {requests} | {ms} |")
        many = sender_of(
            config, Path(folder), signals, WeightTransport.distributed, bucket_bytes=SMALL_BUCKET
        )
        more = len(list(buckets(tensors.items(), SMALL_BUCKET))) - 1
        slow, _ = timed(many, PauseMode.in_place, server, tensors, 0)
    fast = pauses[WeightTransport.distributed, PauseMode.in_place, 0]
    share(given.bandwidth, max(0.0, slow - fast) / more)
    return 0


def sender_of(
    config: RunConfig,
    run_dir: Path,
    signals: Signals,
    transport: WeightTransport,
    **engine: int,
) -> Sender:
    """A sender of that transport."""
    changed = replace(config.engine, transport=transport, **engine)
    return make_sender(replace(config, engine=changed), run_dir, signals)


def timed(
    sender: Sender,
    mode: PauseMode,
    server: Server,
    tensors: dict[str, torch.Tensor],
    requests: int,
) -> tuple[float, float]:
    """Seconds the engine did not generate, and of the whole update, with requests running."""
    sender.config = replace(sender.config, rollout=replace(sender.config.rollout, pause_mode=mode))
    paused, whole = [], []

    async def update() -> None:
        async with aiohttp.ClientSession(server.url) as http:
            asked = [asyncio.create_task(generate(http, i, 1500)) for i in range(requests)]
            for version in range(1, UPDATES + 2):
                await asyncio.sleep(0.2)
                began = time.perf_counter()
                found = await asyncio.to_thread(sender.push, [server.url], tensors.items(), version)
                if version > 1:  # the first makes the group
                    paused.extend(found)
                    whole.append(time.perf_counter() - began)
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    asyncio.run(update())
    return median(paused), median(whole)


def share(bandwidth: float, bucket_s: float) -> None:
    """Prints what an update is of a reference step."""
    reference = compose([])
    size = reference.engine.bucket_bytes
    print(
        f"\nReference, computed: {PARAMETERS / 1e9:.0f}B parameters in buckets of "
        f"{size / 2**30:g} GiB at {bandwidth:g} GB/s from rank 0, every engine fed by the same "
        f"broadcast, {1e3 * bucket_s:.1f} ms a bucket for its requests (measured here), gathering "
        f"on rank 0 and loading not counted, step {STEP_S:g} s."
    )
    for name, width in (("fp8", 1), ("bf16", 2)):
        sent = PARAMETERS * width
        number = math.ceil(sent / size)
        seconds = sent / (bandwidth * 1e9) + number * bucket_s
        print(
            f"{name}: {sent / 1e12:.2f} TB, {number} buckets, {seconds:.1f} s, "
            f"{seconds / STEP_S:.1%} of a step"
        )


if __name__ == "__main__":
    sys.exit(main())
