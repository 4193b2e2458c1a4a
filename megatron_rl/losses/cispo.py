"""A policy gradient with clipped importance weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from megatron_rl.losses.options import fraction, option, positive_number
from megatron_rl.losses.policy_loss import PolicyLoss, TokenLoss
from megatron_rl.losses.ratio_metrics import ratio_metrics
from megatron_rl.losses.registry import register_policy_loss
from megatron_rl.losses.surrogate import ratio_of
from megatron_rl.metrics.values import Mean

if TYPE_CHECKING:
    from megatron_rl.losses.batch import PolicyBatch


@register_policy_loss("cispo")
@dataclass(frozen=True, kw_only=True)
class CISPO(PolicyLoss):
    """−sg(min(r, 1 + ε_high))·A·log π: every token keeps its gradient, only its weight is bounded.

    Source: MiniMax, "MiniMax-M1" (arXiv 2506.13585, eq. 4 and 5), which sets no lower bound; give `clip_ratio_low`
    for one at 1 − ε_low.
    """

    clip_ratio_low: float | None = option(
        "clip_ratio_low", "lower bound of the weight is 1 less this (none, if not given)", fraction, default=None
    )
    clip_ratio_high: float = option(
        "clip_ratio_high", "upper bound of the weight is 1 plus this", positive_number, default=0.2
    )

    def __call__(self, batch: PolicyBatch) -> TokenLoss:
        ratio = ratio_of(batch.log_ratio.detach())
        weight = ratio.clamp(max=1 + self.clip_ratio_high)
        if self.clip_ratio_low is not None:
            weight = weight.clamp(min=1 - self.clip_ratio_low)
        clipped = (weight != ratio) & batch.mask
        return TokenLoss(
            values=-weight * batch.advantages * batch.logprobs,
            metrics=ratio_metrics(batch) | {"clip_fraction": Mean(clipped.sum(), batch.mask.sum())},
        )
