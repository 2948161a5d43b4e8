"""How the sequences of a micro-batch lie one after another, and on which rank each token is."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from megatron.core import parallel_state
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from torch import Tensor

# Scores of sparse attention exist for so many queries at one time: [queries, heads, keys] float32.
MAX_QUERIES = 256


@dataclass(frozen=True)
class Block:
    """Neighbouring queries of one sequence, and the keys that the last of them sees.

    The queries are the last of those keys: the one before the last does not see the last key.
    """

    queries: slice
    """In the order of this rank's tokens."""
    first_key: int
    """The sequence's first token, in the order of the whole micro-batch."""
    num_keys: int
    """Tokens of the sequence up to the last query, itself included."""

    @property
    def num_queries(self) -> int:
        return self.queries.stop - self.queries.start

    @property
    def keys(self) -> slice:
        """In the order of the whole micro-batch."""
        return slice(self.first_key, self.first_key + self.num_keys)

    def within(self, first: int, last: int, size: int) -> Iterator["Block"]:
        """Its queries from `first` up to `last`, at most `size` at a time."""
        stop = min(self.queries.stop, last)
        for start in range(max(self.queries.start, first), stop, size):
            end = min(start + size, stop)
            unseen = self.queries.stop - end
            yield replace(self, queries=slice(start, end), num_keys=self.num_keys - unseen)

    def causal_mask(self, device: torch.device) -> Tensor:
        """[queries, keys] bool, True where a query sees a key."""
        seen = torch.ones(self.num_queries, self.num_keys, dtype=torch.bool, device=device)
        return seen.tril_(self.num_keys - self.num_queries)


@dataclass
class Packed(PackedSeqParams):
    """Which tokens of a micro-batch belong together (``thd``), and which are on this rank.

    N context-parallel ranks share every sequence: of its 2N equal chunks, rank r holds the r-th
    and the r-th from the end, so that the queries of each rank see equally many keys in all. This
    is Megatron's own order, which its rotary embedding knows.
    """

    lengths: list[int] = field(default_factory=list)
    """Tokens of each sequence; kept on the host, so that no layer has to ask the device."""
    blocks: list[Block] = field(default_factory=list)
    """This rank's queries, one block a chunk, in order."""
    mine: Tensor = field(default_factory=lambda: torch.empty(0))
    """[T / N] int64: this rank's tokens as places in the whole micro-batch."""
    positions: Tensor = field(default_factory=lambda: torch.empty(0))
    """[T / N] int64: where each of them is in its sequence, 0-based."""
    order: Tensor = field(default_factory=lambda: torch.empty(0))
    """[T] int64: where each token of the whole is when the ranks' tokens follow one another."""
    chosen: dict[int, Tensor] = field(default_factory=dict)
    """Sparse attention: the keys that a layer chose for this rank's queries, by its number."""

    @classmethod
    def of(
        cls, lengths: list[int], device: torch.device, num_ranks: int = 1, rank: int = 0
    ) -> "Packed":
        """The layout of sequences of these lengths, each at least 1.

        Args:
            num_ranks: context-parallel ranks; if several, lengths are multiples of twice as many.
            rank: this one.
        """
        starts = np.cumsum([0, *lengths])
        of_ranks = [
            np.concatenate(
                [
                    np.arange(start + begin, start + end)
                    for start, length in zip(starts, lengths, strict=False)
                    for begin, end in _chunks(length, num_ranks, number)
                ]
            )
            for number in range(num_ranks)
        ]
        blocks, done = [], 0
        for start, length in zip(starts.tolist(), lengths, strict=False):
            for begin, end in _chunks(length, num_ranks, rank):
                blocks.append(Block(slice(done, done := done + end - begin), start, end))
        positions = of_ranks[rank] - np.repeat(starts[:-1], lengths)[of_ranks[rank]]
        cu_seqlens = torch.from_numpy(starts.astype(np.int32)).to(device)
        longest = max(lengths)
        return cls(
            "thd",
            cu_seqlens,
            cu_seqlens,
            None,
            None,
            longest,
            longest,
            lengths=lengths,
            blocks=blocks,
            mine=torch.from_numpy(of_ranks[rank]).to(device),
            positions=torch.from_numpy(positions).to(device),
            order=torch.from_numpy(np.argsort(np.concatenate(of_ranks))).to(device),
        )

    def whole(self, x: Tensor, *, same_use: bool = False) -> Tensor:
        """The ranks' [T / N, ...] as [T, ...] in the order of the whole micro-batch.

        Args:
            same_use: every rank computes the same from the result, so a gradient is taken once;
                otherwise the ranks' gradients are added up.
        """
        group = parallel_state.get_context_parallel_group()
        if group.size() == 1:
            return x
        return gather_from_sequence_parallel_region(
            x, tensor_parallel_output_grad=not same_use, group=group
        ).index_select(0, self.order)

    def choice(self, layer: int) -> Tensor | None:
        """The keys chosen by `layer` or, if it does not choose, the last before it that did."""
        choosing = [number for number in self.chosen if number <= layer]
        return self.chosen[max(choosing)] if choosing else None


def _chunks(length: int, num_ranks: int, rank: int) -> list[tuple[int, int]]:
    """The parts of a sequence that a rank holds: first token and end, 0-based."""
    if num_ranks == 1:
        return [(0, length)]
    size = length // (2 * num_ranks)
    return [(n * size, (n + 1) * size) for n in (rank, 2 * num_ranks - 1 - rank)]
