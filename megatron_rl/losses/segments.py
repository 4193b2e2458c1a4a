"""Sums over the sequences of a packed micro-batch: whole sequences, although context-parallel ranks share them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Segments:
    """Which sequence each of T tokens belongs to.

    index: [T] int64 in [0, S). tokens: [S] float, counting tokens of each whole sequence, on all context-parallel
    ranks together. cp_group: the ranks that share the sequences, or None where this one holds them whole.
    """

    index: Tensor
    tokens: Tensor
    cp_group: dist.ProcessGroup | None = None

    @classmethod
    def of_rows(cls, mask: Tensor) -> Segments:
        """The rows of a [B, L] mask as sequences, for its tokens flattened to [B·L]."""
        rows, length = mask.shape
        index = torch.arange(rows, device=mask.device).repeat_interleave(length)
        return cls(index, mask.sum(dim=1).to(torch.get_default_dtype()))

    def sum(self, values: Tensor) -> Tensor:
        """[S], the sum of `values` [T] over each whole sequence; differentiable, also across ranks."""
        sums = values.new_zeros(len(self.tokens)).index_add(0, self.index, values)
        if self.cp_group is None or self.cp_group.size() == 1:
            return sums
        return _SumOverRanks.apply(sums, self.cp_group)

    def spread(self, per_sequence: Tensor) -> Tensor:
        """[T], to each token the value of its sequence in `per_sequence` [S]."""
        return per_sequence[self.index]


class _SumOverRanks(torch.autograd.Function):
    """Each rank's loss depends on the common sum, so what they send back is added up too."""

    @staticmethod
    def forward(ctx, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        total = values.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None
