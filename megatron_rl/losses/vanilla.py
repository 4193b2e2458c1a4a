"""Proximal Policy Optimization's clipped surrogate, with an optional second clip for negative advantages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from megatron_rl.losses.options import above_one, fraction, option, positive_number
from megatron_rl.losses.policy_loss import PolicyLoss, TokenLoss
from megatron_rl.losses.ratio_metrics import ratio_metrics
from megatron_rl.losses.registry import register_policy_loss
from megatron_rl.metrics.values import Mean

if TYPE_CHECKING:
    from megatron_rl.losses.batch import PolicyBatch

_MAX_LOG_RATIO = 20.0  # e^20 is far beyond any clip, and keeps the ratio finite in fp32


@register_policy_loss("vanilla")
@dataclass(frozen=True, kw_only=True)
class Vanilla(PolicyLoss):
    """PPO: max(−r·A, −clip(r, 1 − ε_low, 1 + ε_high)·A); for A < 0 at most −c·A, with r = π/π_old.

    Sources: Schulman et al., "Proximal Policy Optimization Algorithms" (arXiv 1707.06347, eq. 7); the bound c
    from Ye et al., "Mastering Complex Control in MOBA Games" (arXiv 1912.09729, eq. 5).
    """

    clip_ratio: float = option("clip_ratio", "PPO clip range around 1", fraction, default=0.2)
    clip_ratio_low: float | None = option(
        "clip_ratio_low", "lower clip range (default: clip_ratio)", fraction, default=None
    )
    clip_ratio_high: float | None = option(
        "clip_ratio_high", "upper clip range (default: clip_ratio)", positive_number, default=None
    )
    clip_ratio_c: float = option(
        "clip_ratio_c", "bound of the ratio where the advantage is negative", above_one, default=3.0
    )

    def __call__(self, batch: PolicyBatch) -> TokenLoss:
        low = self.clip_ratio if self.clip_ratio_low is None else self.clip_ratio_low
        high = self.clip_ratio if self.clip_ratio_high is None else self.clip_ratio_high
        ratio = batch.log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()

        plain = -ratio * batch.advantages
        clipped = -ratio.clamp(1 - low, 1 + high) * batch.advantages
        surrogate = plain.maximum(clipped)
        bounded = surrogate.minimum(-self.clip_ratio_c * batch.advantages)
        values = bounded.where(batch.advantages < 0, surrogate)

        count = batch.mask.sum()
        return TokenLoss(
            values=values,
            metrics=ratio_metrics(batch)
            | {
                "clip_fraction": Mean(((clipped > plain) & batch.mask).sum(), count),
                "clip_fraction_c": Mean(((bounded < surrogate) & (batch.advantages < 0)).sum(), count),
            },
        )
