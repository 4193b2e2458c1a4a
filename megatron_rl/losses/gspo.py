"""The clipped surrogate with the ratio of whole sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from megatron_rl.losses.options import fraction, option, positive_number
from megatron_rl.losses.policy_loss import PolicyLoss, TokenLoss
from megatron_rl.losses.ratio_metrics import ratio_metrics
from megatron_rl.losses.registry import register_policy_loss
from megatron_rl.losses.surrogate import clipped_surrogate, ratio_of
from megatron_rl.metrics.values import Mean

if TYPE_CHECKING:
    from megatron_rl.losses.batch import PolicyBatch


@register_policy_loss("gspo")
@dataclass(frozen=True, kw_only=True)
class GSPO(PolicyLoss):
    """PPO's clip on s = exp(mean over the sequence of log π − log π_old), the same for all tokens of a sequence.

    The gradient goes through each token's own log π with weight s (the paper's GSPO-token). Where all tokens of a
    sequence have one advantage, value and gradient are those of the sequence form.

    Source: Zheng et al., "Group Sequence Policy Optimization" (arXiv 2507.18071, eq. 5, 7 and 13 to 15).
    """

    clip_ratio_low: float = option("clip_ratio_low", "lower clip range around 1", fraction, default=3e-4)
    clip_ratio_high: float = option("clip_ratio_high", "upper clip range around 1", positive_number, default=4e-4)

    @property
    def default_agg_mode(self) -> str:
        return "seq-mean-token-mean"

    def __call__(self, batch: PolicyBatch) -> TokenLoss:
        sequence_ratio = ratio_of(batch.sequence_mean(batch.log_ratio.detach()))
        # a factor of 1 that carries the gradient of log π; masked tokens hold constants
        ratio = sequence_ratio * (batch.logprobs - batch.logprobs.detach()).exp()
        values, clipped = clipped_surrogate(ratio, batch.advantages, self.clip_ratio_low, self.clip_ratio_high)
        return TokenLoss(
            values=values,
            metrics=ratio_metrics(batch) | {"clip_fraction": Mean((clipped & batch.mask).sum(), batch.mask.sum())},
        )
