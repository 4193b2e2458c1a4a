"""Packing the sequences of a global batch into micro-batches, balanced over data-parallel ranks."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence


def pack(lengths: Sequence[int], capacity: int, data_parallel_size: int, multiple_of: int = 1) -> list[list[list[int]]]:
    """Spread sequences over data-parallel ranks and micro-batches.

    The longest go first, each into the emptiest micro-batch of all ranks, with as few micro-batches as hold
    them. Every rank gets the same number, some perhaps empty: ranks meet in collectives once a micro-batch.

    Args:
        lengths: tokens of each sequence, padding included; none above `capacity`.
        capacity: most tokens of a micro-batch.
        multiple_of: what the number of micro-batches is a multiple of (the interleaved schedule's stages).

    Returns:
        for each rank its micro-batches, each a list of positions in `lengths`.

    Raises:
        ValueError: a sequence longer than `capacity`.
    """
    if any(length > capacity for length in lengths):
        raise ValueError(f"a sequence of {max(lengths)} tokens does not fit a micro-batch of {capacity}")
    longest_first = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    count = max(1, math.ceil(sum(lengths) / (capacity * data_parallel_size)))
    while True:
        count = math.ceil(count / multiple_of) * multiple_of
        bins = _fill(lengths, longest_first, capacity, count * data_parallel_size)
        if bins is not None:
            return _deal(lengths, bins, data_parallel_size)
        count += 1


def _fill(lengths: Sequence[int], order: list[int], capacity: int, num_bins: int) -> list[list[int]] | None:
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    emptiest = [(0, i) for i in range(num_bins)]
    for i in order:
        load, bin = emptiest[0]
        if load + lengths[i] > capacity:
            return None
        heapq.heapreplace(emptiest, (load + lengths[i], bin))
        bins[bin].append(i)
    return bins


def _deal(lengths: Sequence[int], bins: list[list[int]], ranks: int) -> list[list[list[int]]]:
    """The fullest bins to the ranks in turn, forth and back, so that ranks compare micro-batch by micro-batch."""
    fullest_first = sorted(bins, key=lambda bin: -sum(lengths[i] for i in bin))
    dealt: list[list[list[int]]] = [[] for _ in range(ranks)]
    for turn in range(0, len(fullest_first), ranks):
        hand = fullest_first[turn : turn + ranks]
        for rank, bin in enumerate(hand if turn // ranks % 2 == 0 else hand[::-1]):
            dealt[rank].append(bin)
    return dealt
