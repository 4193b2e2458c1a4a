"""The surrogate with the geometric mean of clipped token ratios."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from megatron_rl.losses.options import boolean, option, positive_number
from megatron_rl.losses.policy_loss import PolicyLoss, TokenLoss
from megatron_rl.losses.ratio_metrics import ratio_metrics
from megatron_rl.losses.registry import register_policy_loss
from megatron_rl.losses.surrogate import ratio_of
from megatron_rl.metrics.values import Mean

if TYPE_CHECKING:
    from megatron_rl.losses.batch import PolicyBatch


@register_policy_loss("geo_mean")
@dataclass(frozen=True, kw_only=True)
class GeoMean(PolicyLoss):
    """−A·exp(mean over the sequence of the clipped log-ratio), the same for all tokens of a sequence.

    A token's log-ratio is clipped to [−low, high] on the side that its advantage pushes it to, as in PPO, and to
    both sides with `geo_mean_two_sided`. A is the mean over the sequence's tokens.

    Source: Zhao et al., "Geometric-Mean Policy Optimization" (arXiv 2507.20673).
    """

    clip_ratio_low: float = option("clip_ratio_low", "lower clip range of the log-ratio", positive_number, default=0.4)
    clip_ratio_high: float = option(
        "clip_ratio_high", "upper clip range of the log-ratio", positive_number, default=0.4
    )
    two_sided: bool = option("geo_mean_two_sided", "clip whatever the advantage's sign", boolean, default=False)

    @property
    def default_agg_mode(self) -> str:
        return "seq-mean-token-mean"

    def __call__(self, batch: PolicyBatch) -> TokenLoss:
        log_ratio = batch.log_ratio
        clipped = log_ratio.clamp(-self.clip_ratio_low, self.clip_ratio_high)
        if not self.two_sided:
            clipped = log_ratio.minimum(clipped).where(batch.advantages > 0, log_ratio.maximum(clipped))
        ratio = ratio_of(batch.sequence_mean(clipped))
        advantage = batch.sequence_mean(batch.advantages)
        held = ((clipped != log_ratio) & batch.mask).sum()
        return TokenLoss(
            values=-ratio * advantage,
            metrics=ratio_metrics(batch) | {"clip_fraction": Mean(held, batch.mask.sum())},
        )
