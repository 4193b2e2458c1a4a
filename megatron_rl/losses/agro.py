"""The policy whose regularised reward is the same for every completion of a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from megatron_rl.losses.options import option, positive_number
from megatron_rl.losses.policy_loss import PolicyLoss, TokenLoss
from megatron_rl.losses.ratio_metrics import ratio_metrics
from megatron_rl.losses.registry import register_policy_loss
from megatron_rl.metrics.values import Mean

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from megatron_rl.losses.batch import PolicyBatch


@register_policy_loss("agro")
@dataclass(frozen=True, kw_only=True)
class AGRO(PolicyLoss):
    """Half the variance over a group of x = r − τ·(log π − log π_old), log-ratios summed over the completion.

    At the optimum π ∝ π_old·e^{r/τ}, x is the same for all completions of a prompt. The mean of x over the group is
    the exact minimiser of ½(r − V − τ·log-ratio)² over V, so that this is DRO with V solved for. Groups are those
    of the global batch; each completion's part is spread over its tokens in equal shares.

    Source: Tang et al., "RL-finetuning LLMs from on- and off-policy data with a single algorithm" (arXiv 2503.19612).
    """

    uses_advantages = False
    uses_rewards = True
    uses_groups = True
    prepares = True

    tau: float = option(
        "dro_tau", "strength of the regularisation: reward per unit of log-ratio", positive_number, default=1.0
    )

    @property
    def default_agg_mode(self) -> str:
        return "seq-mean-token-sum"

    def prepare(self, whole: PolicyBatch, generator: Generator) -> Tensor:
        rewards = self._regularised_reward(whole)
        share = (whole.mask / whole.sequence_tokens).to(rewards.dtype)  # adds up to 1 over a completion
        empty = rewards.new_zeros(int(whole.groups.max()) + 1 if len(whole.groups) else 0)
        total = empty.index_add(0, whole.groups, share * rewards)
        return (total / empty.index_add(0, whole.groups, share).clamp(min=1))[whole.groups]

    def __call__(self, batch: PolicyBatch) -> TokenLoss:
        residual = self._regularised_reward(batch) - batch.prepared
        return TokenLoss(
            values=0.5 * residual.square() / batch.sequence_tokens,
            metrics=ratio_metrics(batch)
            | {"agro_residual_square": Mean((residual.detach().square() * batch.mask).sum(), batch.mask.sum())},
        )

    def _regularised_reward(self, batch: PolicyBatch) -> Tensor:
        return batch.rewards - self.tau * batch.sequence_sum(batch.log_ratio)
