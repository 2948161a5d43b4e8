"""Which samples go together into which micro-batch, on which data-parallel rank."""

from collections.abc import Sequence


def pack(lengths: Sequence[int], num_ranks: int, max_tokens: int) -> list[list[list[int]]]:
    """Cuts a batch into micro-batches.

    Every rank gets the same number of micro-batches, at least one, since ranks compute in step;
    those at one position are of similar size. Some are empty when samples are few. All ranks call
    this with the same arguments and get the same answer.

    Args:
        lengths: tokens of each sample.
        num_ranks: data-parallel ranks.
        max_tokens: most tokens of a micro-batch; a longer sample is a micro-batch of its own.

    Returns:
        rank -> position -> indices of samples, ascending.
    """
    # Fewest micro-batches that can hold the batch, and more until the samples fit: whole samples
    # leave gaps. One sample each always fits.
    positions = max(1, -(-sum(min(n, max_tokens) for n in lengths) // (num_ranks * max_tokens)))
    while (bins := _fill(lengths, positions * num_ranks, max_tokens)) is None:
        positions += 1
    bins.sort(key=lambda bin_: (-sum(lengths[i] for i in bin_), bin_))

    ranks: list[list[list[int]]] = [[] for _ in range(num_ranks)]
    loads = [0] * num_ranks
    for position in range(positions):
        similar = bins[position * num_ranks : (position + 1) * num_ranks]
        # The largest of them goes to the rank with the least to do so far.
        emptiest_first = sorted(range(num_ranks), key=lambda rank: (loads[rank], rank))
        for rank, bin_ in zip(emptiest_first, similar, strict=True):
            ranks[rank].append(sorted(bin_))
            loads[rank] += sum(lengths[i] for i in bin_)
    return ranks


def _fill(lengths: Sequence[int], num_bins: int, max_tokens: int) -> list[list[int]] | None:
    """Samples into bins, the longest first, each into the emptiest; None: they do not fit."""
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    loads = [0] * num_bins
    for sample in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        emptiest = min(range(num_bins), key=lambda b: (loads[b], b))
        if bins[emptiest] and loads[emptiest] + lengths[sample] > max_tokens:
            return None
        bins[emptiest].append(sample)
        loads[emptiest] += lengths[sample]
    return bins
