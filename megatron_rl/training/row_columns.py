"""What is known of every training row before the first step, and the batches made of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from megatron_rl.advantages import ESTIMATORS, Completions, Options, estimate_advantages
from megatron_rl.config import RunConfig
from megatron_rl.data.global_batch import GlobalBatch
from megatron_rl.data.samples import Sample
from megatron_rl.training.objective import advantage_tau


class RowColumns:
    """Per-token columns of all training rows, by name: for each row an array [c], or one number for all its tokens.

    Args:
        initial: for each row [c] log-probabilities of the starting weights, or None where nothing asks for them.
    """

    def __init__(self, config: RunConfig, samples: Sequence[Sample], initial: Sequence[np.ndarray] | None):
        self.samples = samples
        loss, advantage = config.loss.policy_loss(), config.advantage
        numbers: dict[str, int] = {}
        self._columns: dict[str, Sequence] = {
            "rewards": [np.float32(sample.reward) for sample in samples],
            "groups": [numbers.setdefault(sample.group, len(numbers)) for sample in samples],
        }
        old, reference = (
            initial if source == "initial" else [getattr(sample, name) for sample in samples]
            for source, name in (
                (config.loss.old_logprobs, "old_logprobs"),
                (config.loss.ref_logprobs, "ref_logprobs"),
            )
        )
        if reads_old_logprobs(config):
            self._columns["old_logprobs"] = old
        if reads_rollout_logprobs(config):
            self._columns["rollout_logprobs"] = [sample.rollout_logprobs for sample in samples]
        if config.loss.kl_coef:
            self._columns["ref_logprobs"] = reference
        if advantage.reward_kl_coef:
            coef = np.float32(advantage.reward_kl_coef)
            self._columns["charges"] = [coef * (o - r) for o, r in zip(old, reference, strict=True)]
        if loss.uses_advantages and ESTIMATORS[advantage.advantage_estimator].compute is not None:
            self._columns["advantages"] = estimate_advantages(
                advantage.advantage_estimator,
                self._completions(),
                options=Options(advantage_tau(config), advantage.gae_gamma),
                normalize=advantage.normalize_advantages,
            )

    @property
    def all_advantages_zero(self) -> bool:
        """Whether the rows have advantages, and none other than 0."""
        found = self._columns.get("advantages")
        return found is not None and not any(np.any(values) for values in found)

    def batch(self, rows: np.ndarray) -> GlobalBatch:
        """The global batch of some rows."""
        samples = [self.samples[i] for i in rows]
        return GlobalBatch(
            samples, {name: _joined(samples, [values[i] for i in rows]) for name, values in self._columns.items()}
        )

    def _completions(self) -> Completions:
        return Completions(
            rewards=np.array([sample.reward for sample in self.samples]),
            groups=[sample.group for sample in self.samples],
            masks=[sample.loss_mask for sample in self.samples],
            charges=self._columns.get("charges"),
            baseline_rewards=np.array([sample.baseline_reward for sample in self.samples]),
            given=[sample.advantages for sample in self.samples],
        )


def _joined(samples: Sequence[Sample], values: Sequence) -> np.ndarray:
    """[C] of one array or number a sample; floats in fp32."""
    parts = [np.broadcast_to(value, sample.completion_length) for sample, value in zip(samples, values, strict=True)]
    flat = np.concatenate(parts)
    return flat.astype(np.float32) if flat.dtype.kind == "f" else flat.astype(np.int64)


def reads_old_logprobs(config: RunConfig) -> bool:
    """Whether a run needs old log-probabilities of its rows before it begins."""
    wanted = config.loss.policy_loss().uses_old_logprobs or config.advantage.reward_kl_coef > 0
    return wanted and config.loss.old_logprobs != "current"


def reads_rollout_logprobs(config: RunConfig) -> bool:
    """Whether a run needs its rows' log-probabilities under the sampler."""
    off_policy = config.off_policy
    return off_policy.rollout_is != "none" or bool(off_policy.rollout_rs) or config.loss.policy_loss().old_is_sampler


def reads_initial_logprobs(config: RunConfig) -> bool:
    """Whether a run needs log-probabilities of its rows under the starting weights."""
    reference = config.loss.kl_coef > 0 or config.advantage.reward_kl_coef > 0
    return (reads_old_logprobs(config) and config.loss.old_logprobs == "initial") or (
        reference and config.loss.ref_logprobs == "initial"
    )
