"""A surrogate with a soft gate in the place of a clip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from megatron_rl.losses.options import option, positive_number
from megatron_rl.losses.policy_loss import PolicyLoss, TokenLoss
from megatron_rl.losses.ratio_metrics import ratio_metrics
from megatron_rl.losses.registry import register_policy_loss
from megatron_rl.losses.surrogate import ratio_of

if TYPE_CHECKING:
    from megatron_rl.losses.batch import PolicyBatch


@register_policy_loss("sapo")
@dataclass(frozen=True, kw_only=True)
class SAPO(PolicyLoss):
    """−A·(4/τ)·σ(τ·(r − 1)), with τ₊ where A > 0 and τ₋ elsewhere.

    At r = 1 the slope is that of the plain surrogate, and it fades on both sides.

    Source: Gao et al., "Soft Adaptive Policy Optimization" (arXiv 2511.20347, eq. 5 and 6).
    """

    tau_pos: float = option(
        "sapo_tau_pos", "sharpness of the gate for positive advantages", positive_number, default=1.0
    )
    tau_neg: float = option("sapo_tau_neg", "sharpness of the gate for the others", positive_number, default=1.05)

    @property
    def default_agg_mode(self) -> str:
        return "seq-mean-token-mean"

    def __call__(self, batch: PolicyBatch) -> TokenLoss:
        ratio = ratio_of(batch.log_ratio)
        tau = ratio.new_full(ratio.shape, self.tau_neg).masked_fill(batch.advantages > 0, self.tau_pos)
        gate = (tau * (ratio - 1)).sigmoid() * 4 / tau
        return TokenLoss(-gate * batch.advantages, ratio_metrics(batch))
