"""A policy gradient that holds back the tokens whose probability and advantage rise together most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from megatron_rl.losses.covariance import covariance, highest
from megatron_rl.losses.options import fraction, option, positive_number
from megatron_rl.losses.policy_loss import PolicyLoss, TokenLoss
from megatron_rl.losses.ratio_metrics import ratio_metrics
from megatron_rl.losses.registry import register_policy_loss
from megatron_rl.losses.surrogate import ratio_of
from megatron_rl.metrics.values import Mean

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from megatron_rl.losses.batch import PolicyBatch


@register_policy_loss("kl_cov")
@dataclass(frozen=True, kw_only=True)
class KLCov(PolicyLoss):
    """−r·A, and for the tokens of highest covariance k·|log π − log π_old| on top, to keep entropy up.

    The covariance of a token is (log π − mean log π)·(A − mean A), with means over the global batch; a share
    `kl_cov_ratio` of its tokens is held back, at least one.

    Source: Cui et al., "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models"
    (arXiv 2505.22617).
    """

    prepares = True

    ratio: float = option("kl_cov_ratio", "share of tokens to hold back", fraction, default=2e-4)
    coef: float = option("kl_cov_coef", "strength k of their penalty", positive_number, default=1.0)

    def prepare(self, whole: PolicyBatch, generator: Generator) -> Tensor:
        count = max(1, int(self.ratio * int(whole.mask.sum())))
        return highest(covariance(whole), whole.mask, count)

    def __call__(self, batch: PolicyBatch) -> TokenLoss:
        log_ratio = batch.log_ratio
        surrogate = -ratio_of(log_ratio) * batch.advantages
        return TokenLoss(
            values=surrogate + self.coef * batch.prepared * log_ratio.abs(),
            metrics=ratio_metrics(batch) | {"kl_cov_fraction": Mean(batch.prepared.sum(), batch.mask.sum())},
        )
