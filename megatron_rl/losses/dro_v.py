"""Direct Reward Optimization with a value model: policy and value learn from one squared residual."""

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


@register_policy_loss("dro_v")
@dataclass(frozen=True, kw_only=True)
class DROV(PolicyLoss):
    """½(r − V(x) − τ·log-ratio)², for the policy with V held fixed and divided by τ, for V with the policy held fixed.

    The log-ratio is summed over the completion. The joint optimum is π ∝ π_old·e^{r/τ} with V = τ·log Z, whatever
    policy of full support the completions came from; π_old is the fixed reference, usually the starting weights.
    Policy gradient per sequence: −(r − V − τ·log-ratio)·∇log π. Each completion's loss is spread over its tokens in
    equal shares.

    Source: Richemond et al., "Offline Regularised Reinforcement Learning for Large Language Models Alignment"
    (arXiv 2405.19107). There a value network of its own did better than a shared one.
    """

    uses_advantages = False
    uses_rewards = True
    uses_state_values = True

    tau: float = option(
        "dro_tau", "strength of the regularisation: reward per unit of log-ratio", positive_number, default=1.0
    )

    @property
    def default_agg_mode(self) -> str:
        return "seq-mean-token-sum"

    def __call__(self, batch: PolicyBatch) -> TokenLoss:
        pull = self.tau * batch.sequence_sum(batch.log_ratio)
        values = batch.state_values
        for_policy = (batch.rewards - values.detach() - pull).square() / (2 * self.tau)
        for_value = (batch.rewards - values - pull.detach()).square() / 2

        share = batch.mask / batch.sequence_tokens
        sequences = share.sum()
        return TokenLoss(
            values=(for_policy + for_value) / batch.sequence_tokens,
            metrics=ratio_metrics(batch)
            | {
                "state_value": Mean((values.detach() * share).sum(), sequences),
                "value_loss": Mean((for_value.detach() * share).sum(), sequences),
            },
        )
