"""Micro-batches: samples of a step file as packed tensors, and results back per sample."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glm52_tbench2.rollout.batch import Sample

from .losses import Tokens
from .packed import Packed
from .packing import pack

Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class MicroBatch:
    """Samples one after another. Position t holds a token and asks for the token after it.

    Each may end in padding, and so may the whole.
    """

    samples: list[int]
    """Indices into the batch."""
    tokens: Tensor
    """[T / context-parallel ranks] int64, this rank's model inputs."""
    labels: Tensor
    """Like `tokens`: the token that follows each."""
    packed: Packed
    """Which positions form a sequence; padding of the whole is one of its own, at the end."""
    known: Tokens
    """[T] each, about the labels of all ranks; `old_logp` is 0 until the batch is scored."""

    def with_old_logp(self, old_logp: Tensor) -> "MicroBatch":
        """The same, once the log-probabilities before the update are known: [T] float32."""
        return replace(self, known=replace(self.known, old_logp=old_logp))

    def without_choices(self) -> "MicroBatch":
        """The same, without what sparse attention chose on its way through the model."""
        return replace(self, packed=replace(self.packed, chosen={}))


@dataclass(frozen=True)
class Scores:
    """The trainer's view of one sample, before the update. Arrays are as long as its tokens."""

    logp: Float32
    """Log-probabilities at the rollout's temperature; 0 on tokens the policy did not generate."""
    entropy: Float32
    """Entropy of the distribution each was drawn from, nats; 0 likewise."""


def trained_length(sample: Sample) -> int:
    """Model inputs a sample needs: the tokens before its last generated one.

    What follows, as the last observation, has no label and cannot change what comes before it.
    """
    generated = np.flatnonzero(sample.loss_mask)
    return int(generated[-1]) if generated.size else 0


def micro_batches(
    batch: Sequence[Sample],
    indices: Sequence[int],
    *,
    rank: int,
    num_ranks: int,
    max_tokens: int,
    multiple: int,
    context: tuple[int, int],
    near_cap: float,
    device: torch.device,
) -> list[MicroBatch]:
    """This data-parallel rank's micro-batches of the samples `indices`.

    Args:
        max_tokens: most model inputs in one that a rank computes, where no single sample has more.
        multiple: a rank's inputs are padded to a multiple of this, so that the tensor-parallel
            ranks can share them evenly.
        context: this context-parallel rank, and how many share a micro-batch.
        near_cap: tokens from which a turn is near the per-turn cap.
    """
    lengths = [trained_length(batch[i]) for i in indices]
    # What cannot be trained is not computed; it still counts in the loss's divisors.
    worth = [(i, n) for i, n in zip(indices, lengths, strict=True) if n]
    mine = pack([n for _, n in worth], num_ranks, max_tokens * context[1])[rank]
    return [
        _pack_samples(batch, [worth[j][0] for j in bin_], multiple, context, near_cap, device)
        for bin_ in mine
    ]


def unpack(micro: MicroBatch, scores: Tensor, batch: Sequence[Sample]) -> dict[int, Scores]:
    """The `scores` [2, T] of a micro-batch as one :class:`Scores` a sample."""
    found = {}
    pieces = torch.where(micro.known.mask, scores, 0.0).cpu().split(micro.packed.lengths, dim=1)
    for index, piece in zip(micro.samples, pieces, strict=False):
        length = trained_length(batch[index])
        whole = np.zeros((2, len(batch[index].tokens)), dtype=np.float32)
        whole[:, 1 : length + 1] = piece[:, :length].numpy()
        found[index] = Scores(logp=whole[0], entropy=whole[1])
    return found


def repack(micro: MicroBatch, scores: Mapping[int, Scores]) -> Tensor:
    """The inverse of :func:`unpack` for log-probabilities: [T] float32, 0 on padding."""
    logp = np.zeros(sum(micro.packed.lengths), dtype=np.float32)
    start = 0
    for index, length in zip(micro.samples, micro.packed.lengths, strict=False):
        known = scores[index].logp[1 : length + 1]
        logp[start : start + len(known)] = known
        start += length
    return torch.from_numpy(logp).to(micro.tokens.device)


def _pack_samples(
    batch: Sequence[Sample],
    indices: list[int],
    multiple: int,
    context: tuple[int, int],
    near_cap: float,
    device: torch.device,
) -> MicroBatch:
    rank, num_ranks = context
    chunks = 2 * num_ranks if num_ranks > 1 else 1
    lengths = [trained_length(batch[i]) for i in indices]
    padded = [n + -n % chunks for n in lengths]
    multiple = math.lcm(multiple * num_ranks, chunks)
    padding = -sum(padded) % multiple if padded else multiple

    def joined(arrays: list[np.ndarray], dtype: type) -> Tensor:
        found: np.ndarray = np.zeros(sum(padded) + padding, dtype)
        starts = np.cumsum([0, *padded])
        for start, array in zip(starts, arrays, strict=False):
            found[start : start + len(array)] = array
        return torch.from_numpy(found).to(device)

    def of_labels(arrays: list[np.ndarray], dtype: type) -> Tensor:
        return joined([a[1 : n + 1] for a, n in zip(arrays, lengths, strict=True)], dtype)

    def of_samples(values: Sequence[float], dtype: type) -> Tensor:
        return joined([np.full(n, v) for v, n in zip(values, padded, strict=True)], dtype)

    samples = [batch[i] for i in indices]
    known = Tokens(
        old_logp=torch.zeros(sum(padded) + padding, device=device),
        rollout_logp=of_labels([s.rollout_logprobs for s in samples], np.float32),
        advantages=of_samples([s.advantage for s in samples], np.float32),
        truncated=of_samples([s.truncated for s in samples], np.bool_),
        near_cap=of_labels([_in_long_turns(s, near_cap) for s in samples], np.bool_),
        mask=of_labels([s.loss_mask for s in samples], np.bool_),
        sample_index=of_samples(range(len(indices)), np.int64),
    )
    packed = Packed.of([*padded, padding] if padding else padded, device, num_ranks, rank)
    inputs = [s.tokens[:n] for s, n in zip(samples, lengths, strict=True)]
    return MicroBatch(
        samples=indices,
        tokens=joined(inputs, np.int64)[packed.mine],
        labels=of_labels([s.tokens for s in samples], np.int64)[packed.mine],
        packed=packed,
        known=known,
    )


def _in_long_turns(sample: Sample, least: float) -> np.ndarray:
    """[T] bool, True on the tokens of turns that have `least` tokens or more."""
    found = np.zeros(len(sample.tokens), dtype=np.bool_)
    for turn in sample.turns:
        found[turn.start : turn.end] = turn.end - turn.start >= least
    return found
