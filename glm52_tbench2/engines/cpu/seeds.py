"""Sampling seeds of each request on a CPU.

SGLang reads `sampling_seed` only in its deterministic mode, which it refuses to run on a CPU. The
sampler itself is able: given seeds, it draws each token by the Gumbel trick with noise that is a
hash of (seed, position, token), so nothing else in the batch or before it matters. Missing are the
seeds in the batch and the hash, a compiled kernel.
"""

import secrets
from typing import Any

import numpy as np
import torch

_library: torch.library.Library | None = None


def _rotate(x: np.ndarray, bits: int) -> np.ndarray:
    return (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))


def _mix(state: np.ndarray, block: np.ndarray) -> np.ndarray:
    block = _rotate(block * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    return _rotate(state ^ block, 13) * np.uint32(5) + np.uint32(0xE6546B64)


def murmur_hash32(
    seeds_N: torch.Tensor, positions_N: torch.Tensor, columns_V: torch.Tensor
) -> torch.Tensor:
    """MurmurHash3 (32 bit) of the 16 bytes (seed: 8, position: 4, column: 4), uint32 [N, V].

    The same numbers as SGLang's GPU kernel gives.
    """
    seeds = seeds_N.view(torch.int64).numpy().view(np.uint64)
    state = np.zeros(len(seeds), np.uint32)
    for block in (seeds & np.uint64(0xFFFFFFFF), seeds >> np.uint64(32), positions_N.numpy()):
        state = _mix(state, block.astype(np.uint32))
    h = _mix(state[:, None], columns_V.numpy().astype(np.uint32)[None, :])
    h ^= np.uint32(16)
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    return torch.from_numpy(h)


def seeded(info: Any, cls: type, batch: Any, vocab_size: int) -> Any:
    """After SamplingBatchInfo.from_schedule_batch: puts each request's seed into the batch.

    A request without a seed is given a random one, once.
    """
    seeds = []
    for request in batch.reqs:
        if request.sampling_params.sampling_seed is None:
            request.sampling_params.sampling_seed = secrets.randbits(63)
        seeds.append(request.sampling_params.sampling_seed)
    info.sampling_seed = torch.tensor(seeds, dtype=torch.int64)
    return info


def install() -> None:
    """Defines the hash kernel and registers the hook."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    global _library
    _library = torch.library.Library("sgl_kernel", "FRAGMENT")
    _library.define(
        "murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor col_indices) -> Tensor"
    )
    _library.impl("murmur_hash32_cpu", murmur_hash32, "CPU")
    HookRegistry.register(
        "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo.from_schedule_batch",
        seeded,
        HookType.AFTER,
    )
