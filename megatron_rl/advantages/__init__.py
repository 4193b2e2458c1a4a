"""Rewards to advantages."""

from megatron_rl.advantages.estimators import ESTIMATORS, Completions, Options, estimate_advantages, rows_alone

__all__ = ["ESTIMATORS", "Completions", "Options", "estimate_advantages", "rows_alone"]
