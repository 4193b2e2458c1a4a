"""The plain policy gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from megatron_rl.losses.policy_loss import PolicyLoss, TokenLoss
from megatron_rl.losses.registry import register_policy_loss

if TYPE_CHECKING:
    from megatron_rl.losses.batch import PolicyBatch


@register_policy_loss("gpg")
@dataclass(frozen=True, kw_only=True)
class GPG(PolicyLoss):
    """−log π·A.

    Sources: Williams, "Simple Statistical Gradient-Following Algorithms" (1992); as group policy gradient in Chu et
    al., "GPG" (arXiv 2504.02546).
    """

    uses_old_logprobs = False

    def __call__(self, batch: PolicyBatch) -> TokenLoss:
        return TokenLoss(-batch.logprobs * batch.advantages)
