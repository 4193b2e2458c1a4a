"""Which rows are trained on: a function of the seed and of how many rows came before, and of nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RowOrder:
    """An endless sequence of rows: epoch after epoch, each in an order of its own.

    A batch may hold the end of one epoch and the beginning of the next: every row is seen once an epoch.
    """

    num_rows: int
    seed: int
    shuffle: bool = True

    def rows(self, consumed: int, count: int) -> np.ndarray:
        """[count] row numbers that follow the first `consumed` ones."""
        positions = np.arange(consumed, consumed + count)
        epochs, offsets = np.divmod(positions, self.num_rows)
        return np.concatenate([self._epoch(epoch)[offsets[epochs == epoch]] for epoch in np.unique(epochs)])

    def _epoch(self, epoch: int) -> np.ndarray:
        if not self.shuffle:
            return np.arange(self.num_rows)
        return np.random.default_rng([self.seed, int(epoch)]).permutation(self.num_rows)
