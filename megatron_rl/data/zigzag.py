"""How context-parallel ranks share a sequence.

A causal sequence is cut into 2·cp chunks; rank r holds chunks r and 2·cp − 1 − r, one cheap and one dear, so
that all ranks do the same work. TransformerEngine uses this layout for packed sequences too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def zigzag_positions(lengths: Sequence[int], cp_size: int, cp_rank: int) -> np.ndarray:
    """Positions of the packed tokens that a rank holds, in its own order.

    Args:
        lengths: padded lengths of the packed sequences, each a multiple of 2·cp_size where cp_size > 1.

    Returns:
        [sum(lengths) / cp_size] int64.
    """
    starts = np.cumsum([0, *lengths])
    if cp_size == 1:
        return np.arange(starts[-1])
    owned = []
    for start, length in zip(starts[:-1], lengths, strict=True):
        chunk = length // (2 * cp_size)
        first = start + cp_rank * chunk
        last = start + (2 * cp_size - 1 - cp_rank) * chunk
        owned += [np.arange(first, first + chunk), np.arange(last, last + chunk)]
    return np.concatenate(owned)
