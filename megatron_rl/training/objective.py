"""What a run minimises, read from its configuration once."""

from __future__ import annotations

from dataclasses import dataclass

from megatron_rl.advantages import ESTIMATORS
from megatron_rl.config import RunConfig
from megatron_rl.losses import PolicyLoss
from megatron_rl.losses.off_policy import ImportanceWeights, Rejection


@dataclass(frozen=True)
class Objective:
    """A policy loss, how its token values become one number, and what stands beside it.

    entropy_coef, kl_coef, kl_kind: terms beside the loss. old_is_current: the policy at the beginning of each step
    is the old one. weights, rejections: the off-policy correction. estimator: of advantages that follow the model
    step by step; None where they were estimated before the first one. value_per_token: the value model is asked
    before each token, not only for the prompt.
    """

    loss: PolicyLoss
    agg_mode: str
    loss_scale_factor: float | None
    temperature: float
    vocab_size: int
    entropy_coef: float = 0.0
    kl_coef: float = 0.0
    kl_kind: str = "k3"
    old_is_current: bool = False
    weights: ImportanceWeights | None = None
    rejections: tuple[Rejection, ...] = ()
    estimator: str | None = None
    normalize_advantages: bool = False
    tau: float | None = None
    gamma: float = 1.0
    lam: float = 0.95
    value_loss_coef: float = 1.0

    @classmethod
    def of(cls, config: RunConfig, vocab_size: int) -> Objective:
        loss, section, advantage = config.loss.policy_loss(), config.loss, config.advantage
        estimator, off_policy = ESTIMATORS[advantage.advantage_estimator], config.off_policy
        step_by_step = loss.uses_advantages and estimator.compute is None
        weights = None
        if off_policy.rollout_is != "none":
            weights = ImportanceWeights(
                off_policy.rollout_is, off_policy.rollout_is_threshold, off_policy.rollout_is_lower
            )
        return cls(
            loss=loss,
            agg_mode=section.loss_agg_mode or loss.default_agg_mode,
            loss_scale_factor=section.loss_scale_factor,
            temperature=section.temperature,
            vocab_size=vocab_size,
            entropy_coef=section.entropy_coef,
            kl_coef=section.kl_coef,
            kl_kind=section.kl_kind,
            old_is_current=section.old_logprobs == "current" or not loss.uses_old_logprobs,
            weights=weights,
            rejections=tuple(Rejection.parse(text) for text in off_policy.rollout_rs),
            estimator=advantage.advantage_estimator if step_by_step else None,
            normalize_advantages=advantage.normalize_advantages,
            tau=advantage_tau(config),
            gamma=advantage.gae_gamma,
            lam=advantage.gae_lambda,
            value_loss_coef=advantage.value_loss_coef or 1.0,
        )

    @property
    def corrects(self) -> bool:
        """Whether there is an off-policy correction."""
        return self.weights is not None or bool(self.rejections)

    @property
    def corrects_current(self) -> bool:
        """Whether the correction compares the policy as it stands with the sampler, with no third one between."""
        return self.corrects and (self.old_is_current or self.loss.old_is_sampler)

    @property
    def measures_logprobs(self) -> bool:
        """Whether a step begins with the batch's log-probabilities under the policy as it stands."""
        return self.loss.prepares or self.corrects_current or self.estimator == "dro"

    @property
    def measures_values(self) -> bool:
        """Whether a step begins with the value model's opinion of the batch."""
        return self.estimator in ("value", "gae")

    @property
    def value_per_token(self) -> bool:
        return self.estimator == "gae"


def advantage_tau(config: RunConfig) -> float | None:
    """The tau of soft and self-consistent baselines: as given, or that of DRO at sequence level."""
    if config.advantage.advantage_tau is not None:
        return config.advantage.advantage_tau
    if config.loss.loss_mode == "dro" and config.loss.dro_level == "sequence":
        return config.loss.dro_beta
    return None
