"""Direct Reward Optimization, at token level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from megatron_rl.losses.options import option, positive_number
from megatron_rl.losses.policy_loss import PolicyLoss, TokenLoss
from megatron_rl.losses.ratio_metrics import ratio_metrics
from megatron_rl.losses.registry import register_policy_loss
from megatron_rl.metrics.values import Mean

if TYPE_CHECKING:
    from megatron_rl.losses.batch import PolicyBatch


@register_policy_loss("dro")
@dataclass(frozen=True, kw_only=True)
class DRO(PolicyLoss):
    """Direct Reward Optimization: −(log π·A − β/2·(log π − log π_old)²).

    The gradient with respect to log π is −(A − β·(log π − log π_old)): a policy gradient whose pull fades as
    the log-ratio approaches A/β, with no clipping and no importance ratio, which is what lets it learn from
    logged samples. The penalty does not depend on A, so a token with A = 0 is still held to the old policy,
    and advantages must not be scaled beforehand to obtain another aggregation.

    Source: the policy part of Richemond et al., "Offline Regularised Reinforcement Learning for Large
    Language Models Alignment" (arXiv 2405.19107), taken per token as in Kimi k1.5 (arXiv 2501.12599, eq. 3)
    for one-token sequences.
    """

    beta: float = option("dro_beta", "strength of the squared log-ratio penalty; only A/beta matters", positive_number)

    def __call__(self, batch: PolicyBatch) -> TokenLoss:
        log_ratio = batch.log_ratio
        gain = batch.logprobs * batch.advantages
        penalty = (0.5 * self.beta) * log_ratio.square()

        pull = batch.advantages.abs().sum()
        held_back = penalty.detach().sum()
        return TokenLoss(
            values=penalty - gain,
            metrics=ratio_metrics(batch)
            | {
                "dro_penalty_pull": Mean((self.beta * log_ratio.detach()).abs().sum(), pull),
                "dro_penalty_share": Mean(held_back, held_back + gain.detach().abs().sum()),
            },
        )
