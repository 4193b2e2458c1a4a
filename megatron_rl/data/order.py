"""Which rows are trained on: a function of the seed and of how many rows came before, and of nothing else."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class RowOrder:
    """An endless sequence of rows: epoch after epoch, each in an order of its own.

    A batch may hold the end of one epoch and the beginning of the next: every row is seen once an epoch.

    groups: for each row its group, if the rows of a group are to stay together, else None. Groups are then
    shuffled in the place of rows, and a batch takes the rest of its last group too.
    """

    num_rows: int
    seed: int
    shuffle: bool = True
    groups: Sequence[Hashable] | None = None

    def rows(self, consumed: int, count: int) -> np.ndarray:
        """Row numbers that follow the first `consumed` ones: `count` of them, and the rest of the last group."""
        last = consumed + count - 1
        epoch, offset = divmod(last, self.num_rows)
        return self._rows(consumed, last + 1 + self._rest_of_group(epoch, offset))

    def _rows(self, first: int, end: int) -> np.ndarray:
        epochs, offsets = np.divmod(np.arange(first, end), self.num_rows)
        return np.concatenate([self._epoch(epoch)[offsets[epochs == epoch]] for epoch in np.unique(epochs)])

    def _rest_of_group(self, epoch: int, offset: int) -> int:
        """How many rows of the group at a place in an epoch come after it."""
        if self.groups is None:
            return 0
        following = self._group_numbers[self._epoch(epoch)[offset:]]
        others = np.flatnonzero(following != following[0])
        return int(others[0] if len(others) else len(following)) - 1

    @cached_property
    def _group_numbers(self) -> np.ndarray:
        """[R] int64, groups numbered in the order of their first rows."""
        numbers: dict[Hashable, int] = {}
        return np.array([numbers.setdefault(group, len(numbers)) for group in self.groups])

    def _epoch(self, epoch: int) -> np.ndarray:
        generator = np.random.default_rng([self.seed, int(epoch)])
        if self.groups is None:
            return generator.permutation(self.num_rows) if self.shuffle else np.arange(self.num_rows)
        numbers = self._group_numbers
        if self.shuffle:
            numbers = generator.permutation(numbers.max() + 1)[numbers]
        return np.argsort(numbers, kind="stable")
