"""Which rows a step trains on: a function of the seed and the step alone, so that nothing need be stored to resume."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RowOrder:
    """An endless sequence of rows: epoch after epoch, each in an order of its own, cut into global batches.

    A batch may hold the end of one epoch and the beginning of the next: every row is seen once an epoch.
    """

    num_rows: int
    global_batch_size: int
    seed: int
    shuffle: bool = True

    def batch(self, step: int) -> np.ndarray:
        """[global_batch_size] row numbers of step `step`, counted from 0."""
        first = step * self.global_batch_size
        positions = np.arange(first, first + self.global_batch_size)
        epochs, offsets = np.divmod(positions, self.num_rows)
        return np.concatenate([self._epoch(epoch)[offsets[epochs == epoch]] for epoch in np.unique(epochs)])

    def _epoch(self, epoch: int) -> np.ndarray:
        if not self.shuffle:
            return np.arange(self.num_rows)
        return np.random.default_rng([self.seed, int(epoch)]).permutation(self.num_rows)
