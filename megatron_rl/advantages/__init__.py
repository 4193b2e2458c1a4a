"""Rewards to advantages."""

from megatron_rl.advantages.baselines import baseline_advantages

__all__ = ["baseline_advantages"]
