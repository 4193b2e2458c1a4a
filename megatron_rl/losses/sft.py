"""Supervised fine-tuning: the negative log-likelihood of the tokens that count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from megatron_rl.losses.policy_loss import PolicyLoss, TokenLoss
from megatron_rl.losses.registry import register_policy_loss

if TYPE_CHECKING:
    from megatron_rl.losses.batch import PolicyBatch


@register_policy_loss("sft")
@dataclass(frozen=True, kw_only=True)
class SFT(PolicyLoss):
    """−log π. Advantages and the old policy play no part."""

    uses_old_logprobs = False
    uses_advantages = False

    def __call__(self, batch: PolicyBatch) -> TokenLoss:
        return TokenLoss(values=-batch.logprobs)
