"""The policy gradient with an importance ratio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from megatron_rl.losses.policy_loss import PolicyLoss, TokenLoss
from megatron_rl.losses.ratio_metrics import ratio_metrics
from megatron_rl.losses.registry import register_policy_loss
from megatron_rl.losses.surrogate import ratio_of

if TYPE_CHECKING:
    from megatron_rl.losses.batch import PolicyBatch


@register_policy_loss("importance_sampling")
@dataclass(frozen=True, kw_only=True)
class ImportanceSampling(PolicyLoss):
    """−r·A with r = π/π_old: the unbiased gradient for samples of π_old, without any clip.

    Source: Schulman et al., "Trust Region Policy Optimization" (arXiv 1502.05477, eq. 13), per token.
    """

    def __call__(self, batch: PolicyBatch) -> TokenLoss:
        return TokenLoss(-ratio_of(batch.log_ratio) * batch.advantages, ratio_metrics(batch))
