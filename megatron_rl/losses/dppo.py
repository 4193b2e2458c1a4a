"""Policy gradients masked by a divergence, in the place of a clipped ratio."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from megatron_rl.losses.options import above_one, option, positive_number
from megatron_rl.losses.policy_loss import PolicyLoss, TokenLoss
from megatron_rl.losses.ratio_metrics import ratio_metrics
from megatron_rl.losses.registry import register_policy_loss
from megatron_rl.losses.surrogate import ratio_of
from megatron_rl.metrics.values import Mean

if TYPE_CHECKING:
    from torch import Tensor

    from megatron_rl.losses.batch import PolicyBatch


@dataclass(frozen=True, kw_only=True)
class DivergencePPO(PolicyLoss):
    """−A·sg(min(r, c))·log π for tokens inside the trust region, or on their way back into it; 0 for the others.

    The divergence looks at the probability itself: a rare token whose ratio doubles has hardly moved the policy, and
    a frequent one may have moved it far at a ratio near 1.

    Source: Qi et al., "Rethinking the Trust Region in LLM Reinforcement Learning" (arXiv 2602.04879).
    """

    ratio_cap: float = option("dppo_ratio_cap", "greatest weight c of a token", above_one, default=20.0)

    @abstractmethod
    def _outside(self, old: Tensor, new: Tensor) -> Tensor:
        """[T] bool: tokens whose probability went from `old` to `new` too far."""

    def __call__(self, batch: PolicyBatch) -> TokenLoss:
        log_ratio = batch.log_ratio.detach()
        old, new = batch.old_logprobs.exp(), batch.logprobs.detach().exp()
        moving_away = (log_ratio * batch.advantages) > 0
        held = self._outside(old, new) & moving_away & batch.mask
        weight = ratio_of(log_ratio).clamp(max=self.ratio_cap).masked_fill(held, 0.0)
        return TokenLoss(
            values=-batch.advantages * weight * batch.logprobs,
            metrics=ratio_metrics(batch) | {"clip_fraction": Mean(held.sum(), batch.mask.sum())},
        )


@register_policy_loss("dppo_tv")
@dataclass(frozen=True, kw_only=True)
class DPPOTotalVariation(DivergencePPO):
    """The trust region is |π − π_old| ≤ δ, the token's part of the total variation."""

    delta: float = option("dppo_delta", "size δ of the trust region", positive_number, default=0.15)

    def _outside(self, old: Tensor, new: Tensor) -> Tensor:
        return (new - old).abs() > self.delta


@register_policy_loss("dppo_kl")
@dataclass(frozen=True, kw_only=True)
class DPPOKullbackLeibler(DivergencePPO):
    """The trust region is KL(π_old ‖ π) ≤ δ of the token against all others: of two Bernoulli distributions."""

    delta: float = option("dppo_delta", "size δ of the trust region", positive_number, default=0.05)

    def _outside(self, old: Tensor, new: Tensor) -> Tensor:
        tiny = 1e-12  # keeps logarithms finite where a token is certain
        old, new = old.double(), new.double()
        rest_old, rest_new = (1 - old).clamp(min=tiny), (1 - new).clamp(min=tiny)
        kl = old * (old.clamp(min=tiny) / new.clamp(min=tiny)).log() + rest_old * (rest_old / rest_new).log()
        return kl > self.delta
