"""Advantages of logged completions: the reward less a baseline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def baseline_advantages(
    rewards: np.ndarray, prompts: Sequence[str], *, baseline: str = "batch-mean", normalize: bool = False
) -> np.ndarray:
    """The advantage of each completion of a data set.

    Args:
        rewards: [R].
        prompts: [R], equal for completions of the same prompt.
        baseline: "none"; "batch-mean", the mean over all R rows; "prompt-mean", over the rows of the prompt.
            A prompt with a single row has advantage 0 under "prompt-mean": it then only holds the policy back.
        normalize: divide by the standard deviation over all R advantages, where it is not 0. Under DRO only
            the quotient of advantage and beta matters, so this changes what beta means.

    Returns:
        [R] float64.

    Raises:
        ValueError: an unknown baseline.
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    if baseline == "none":
        advantages = rewards.copy()
    elif baseline == "batch-mean":
        advantages = rewards - rewards.mean()
    elif baseline == "prompt-mean":
        _, group = np.unique(np.asarray(prompts), return_inverse=True)
        mean = np.bincount(group, weights=rewards) / np.bincount(group)
        advantages = rewards - mean[group]
    else:
        raise ValueError(f"unknown baseline {baseline!r}: known are none, batch-mean, prompt-mean")
    spread = advantages.std()
    return advantages / spread if normalize and spread > 0 else advantages
