"""Proximal Policy Optimization's clipped surrogate, with a second clip for negative advantages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from megatron_rl.losses.options import above_one, option
from megatron_rl.losses.policy_loss import PolicyLoss, TokenLoss
from megatron_rl.losses.ratio_metrics import ratio_metrics
from megatron_rl.losses.registry import register_policy_loss
from megatron_rl.losses.surrogate import ClipRange, clipped_surrogate, ratio_of
from megatron_rl.metrics.values import Mean

if TYPE_CHECKING:
    from megatron_rl.losses.batch import PolicyBatch


@register_policy_loss("vanilla")
@dataclass(frozen=True, kw_only=True)
class Vanilla(ClipRange, PolicyLoss):
    """PPO: max(−r·A, −clip(r, 1 − ε_low, 1 + ε_high)·A); for A < 0 at most −c·A, with r = π/π_old.

    Sources: Schulman et al., "Proximal Policy Optimization Algorithms" (arXiv 1707.06347, eq. 7); the bound c
    from Ye et al., "Mastering Complex Control in MOBA Games" (arXiv 1912.09729, eq. 5). A c above e^20 is none.
    """

    clip_ratio_c: float = option(
        "clip_ratio_c", "bound of the ratio where the advantage is negative", above_one, default=3.0
    )

    def __call__(self, batch: PolicyBatch) -> TokenLoss:
        surrogate, clipped = clipped_surrogate(ratio_of(batch.log_ratio), batch.advantages, self.low, self.high)
        bounded = surrogate.minimum(-self.clip_ratio_c * batch.advantages)
        negative = batch.advantages < 0

        count = batch.mask.sum()
        return TokenLoss(
            values=bounded.where(negative, surrogate),
            metrics=ratio_metrics(batch)
            | {
                "clip_fraction": Mean((clipped & batch.mask).sum(), count),
                "clip_fraction_c": Mean(((bounded < surrogate) & negative).sum(), count),
            },
        )
