"""Direct Reward Optimization, at token and at sequence level."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from megatron_rl.losses.options import LossOptionError, one_of, option, positive_number
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

    `dro_level` sequence takes log π and the log-ratio summed over the completion, with one penalty for the whole
    of it, spread over its tokens in equal shares. For completions of T tokens with equal log-ratios the two levels
    agree where β of the token level is T·β of the sequence level.

    With `dro_target_kl` beta moves after each step, so that the mean of `kl_old_new_k3` over the tokens comes to
    the target: β ← β·exp(gain·clip(KL/target − 1, −1, 1)), within a factor of 100 of where it began.

    Sources: the policy part of Richemond et al., "Offline Regularised Reinforcement Learning for Large
    Language Models Alignment" (arXiv 2405.19107); Kimi k1.5 (arXiv 2501.12599, eq. 3) at sequence level; for the
    moving beta Ziegler et al., "Fine-Tuning Language Models from Human Preferences" (arXiv 1909.08593, 2.2).
    """

    beta: float = option("dro_beta", "strength of the squared log-ratio penalty; only A/beta matters", positive_number)
    level: str = option(
        "dro_level", "token or sequence: where log-ratios are squared", one_of("token", "sequence"), default="token"
    )
    target_kl: float | None = option(
        "dro_target_kl", "move beta until the mean KL of a token is this", positive_number, default=None
    )
    beta_gain: float | None = option(
        "dro_beta_gain", "how fast beta moves towards dro_target_kl (0.1, if not given)", positive_number, default=None
    )
    beta_now: float | None = None
    """Where `dro_target_kl` has moved beta to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta_gain is not None and self.target_kl is None:
            raise LossOptionError([("dro_beta_gain", self.beta_gain, "needs dro_target_kl")])

    @property
    def default_agg_mode(self) -> str:
        return "seq-mean-token-sum" if self.level == "sequence" else "token-mean"

    def __call__(self, batch: PolicyBatch) -> TokenLoss:
        beta = self.beta_now or self.beta
        if self.level == "sequence":
            log_ratio = batch.sequence_sum(batch.log_ratio)
            share = batch.mask / batch.sequence_tokens
        else:
            log_ratio, share = batch.log_ratio, batch.mask
        gain = batch.logprobs * batch.advantages
        penalty = (0.5 * beta) * log_ratio.square() * share

        pull = (beta * log_ratio.detach() * share).abs().sum()
        held_back, count = penalty.detach().sum(), batch.mask.sum()
        return TokenLoss(
            values=penalty - gain,
            metrics=ratio_metrics(batch)
            | {
                "dro_beta": Mean(beta * count.double(), count),
                "dro_penalty_pull": Mean(pull, (batch.advantages * share).abs().sum()),
                "dro_penalty_share": Mean(held_back, held_back + gain.detach().abs().sum()),
            },
        )

    def after_step(self, numbers: Mapping[str, float | None]) -> Self:
        kl = numbers.get("kl_old_new_k3")
        if self.target_kl is None or kl is None or not math.isfinite(kl):
            return self
        error = min(max(kl / self.target_kl - 1, -1.0), 1.0)
        beta = (self.beta_now or self.beta) * math.exp((self.beta_gain or 0.1) * error)
        return replace(self, beta_now=min(max(beta, self.beta / 100), self.beta * 100))

    def state(self) -> dict[str, float]:
        return {} if self.beta_now is None else {"beta_now": self.beta_now}

    def with_state(self, state: Mapping[str, float]) -> Self:
        return replace(self, beta_now=state.get("beta_now"))
