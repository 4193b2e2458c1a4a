"""The sampler as the old policy, with no third policy between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from megatron_rl.losses.options import one_of, option
from megatron_rl.losses.policy_loss import PolicyLoss, TokenLoss
from megatron_rl.losses.ratio_metrics import ratio_metrics
from megatron_rl.losses.registry import register_policy_loss
from megatron_rl.losses.surrogate import ClipRange, clipped_surrogate, ratio_of
from megatron_rl.metrics.values import Mean

if TYPE_CHECKING:
    from megatron_rl.losses.batch import PolicyBatch


@register_policy_loss("bypass_mode")
@dataclass(frozen=True, kw_only=True)
class BypassMode(ClipRange, PolicyLoss):
    """π_old is the policy that the completions were sampled from, by its own log-probabilities.

    `ppo_clip`: max(−r·A, −clip(r)·A) with r = π/π_sampler, which corrects for the sampler by itself, so that
    off-policy weights stay out. `reinforce`: −log π·A, times the off-policy weights of the run, if there are any.
    A rejection of tokens and sequences compares the policy at the step's beginning with the sampler.

    Source: the bypass mode of verl's rollout correction (documentation, 2025).
    """

    old_is_sampler = True

    kind: str = option("bypass_loss", "ppo_clip or reinforce", one_of("ppo_clip", "reinforce"), default="ppo_clip")

    @property
    def takes_rollout_weights(self) -> bool:
        return self.kind == "reinforce"

    def __call__(self, batch: PolicyBatch) -> TokenLoss:
        if self.kind == "reinforce":
            return TokenLoss(-batch.logprobs * batch.advantages, ratio_metrics(batch))
        values, clipped = clipped_surrogate(ratio_of(batch.log_ratio), batch.advantages, self.low, self.high)
        return TokenLoss(
            values=values,
            metrics=ratio_metrics(batch) | {"clip_fraction": Mean((clipped & batch.mask).sum(), batch.mask.sum())},
        )
