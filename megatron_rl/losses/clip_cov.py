"""PPO that lets go of some tokens whose probability and advantage rise together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from megatron_rl.losses.covariance import covariance, highest
from megatron_rl.losses.options import LossOptionError, fraction, number, option
from megatron_rl.losses.policy_loss import PolicyLoss, TokenLoss
from megatron_rl.losses.ratio_metrics import ratio_metrics
from megatron_rl.losses.registry import register_policy_loss
from megatron_rl.losses.surrogate import ClipRange, clipped_surrogate, ratio_of
from megatron_rl.metrics.values import Mean

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from megatron_rl.losses.batch import PolicyBatch


@register_policy_loss("clip_cov")
@dataclass(frozen=True, kw_only=True)
class ClipCov(ClipRange, PolicyLoss):
    """PPO's surrogate, with a random few of the tokens of high covariance left out to keep entropy up.

    The covariance of a token is (log π − mean log π)·(A − mean A), with means over the global batch. Of the tokens
    with one between `clip_cov_lb` and `clip_cov_ub`, a share `clip_cov_ratio` of all tokens is drawn, at least one,
    by the run's seed; their loss is 0.

    Source: Cui et al., "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models"
    (arXiv 2505.22617).
    """

    prepares = True

    ratio: float = option("clip_cov_ratio", "share of tokens to leave out", fraction, default=2e-4)
    lower: float = option("clip_cov_lb", "least covariance of a token to leave out", number, default=1.0)
    upper: float = option("clip_cov_ub", "greatest covariance of a token to leave out", number, default=5.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.upper <= self.lower:
            raise LossOptionError([("clip_cov_ub", self.upper, f"must be above clip_cov_lb {self.lower}")])

    def prepare(self, whole: PolicyBatch, generator: Generator) -> Tensor:
        cov = covariance(whole)
        eligible = whole.mask & (cov > self.lower) & (cov < self.upper)
        count = max(1, int(self.ratio * int(whole.mask.sum())))
        draw = cov.new_empty(cov.shape).uniform_(generator=generator)
        return highest(draw, eligible, count)

    def __call__(self, batch: PolicyBatch) -> TokenLoss:
        values, clipped = clipped_surrogate(ratio_of(batch.log_ratio), batch.advantages, self.low, self.high)
        chosen = batch.prepared > 0
        count = batch.mask.sum()
        return TokenLoss(
            values=values.masked_fill(chosen, 0.0),
            metrics=ratio_metrics(batch)
            | {
                "clip_fraction": Mean((clipped & batch.mask).sum(), count),
                "clip_cov_fraction": Mean(chosen.sum(), count),
            },
        )
