"""Choosing tokens by the covariance of their log-probability and advantage over the global batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from megatron_rl.losses.batch import PolicyBatch


def covariance(whole: PolicyBatch) -> Tensor:
    """[T] (log π − mean log π)·(A − mean A), with means over the counting tokens of the whole batch."""
    count = whole.mask.sum().clamp(min=1)
    logprobs = whole.logprobs - whole.logprobs.sum() / count
    return logprobs * (whole.advantages - whole.advantages.sum() / count)


def highest(scores: Tensor, eligible: Tensor, count: int) -> Tensor:
    """[T] float, 1 at the (at most) `count` eligible tokens of highest score and 0 elsewhere; the first of equals."""
    order = scores.masked_fill(~eligible, float("-inf")).argsort(descending=True, stable=True)[:count]
    chosen = scores.new_zeros(scores.shape)
    chosen[order] = 1.0
    return chosen * eligible
