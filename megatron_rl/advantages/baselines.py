"""Advantages of completions that need nothing but rewards: the reward less a baseline.

Each estimator takes the rewards of R completions, their groups [R] (numbered from 0; completions of one prompt are
one group) and their lengths [R] in tokens, and returns [R] advantages in fp64.
"""

from __future__ import annotations

import numpy as np


def group_mean(rewards: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """[R], the mean over each completion's group."""
    return (np.bincount(groups, rewards) / np.bincount(groups))[groups]


def batch_mean(rewards: np.ndarray, groups: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """r less the mean of all R."""
    return rewards - rewards.mean()


def prompt_mean(rewards: np.ndarray, groups: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """r less the mean of its group (Dr. GRPO, arXiv 2503.20783)."""
    return rewards - group_mean(rewards, groups)


def prompt_mean_std(rewards: np.ndarray, groups: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """r less the mean of its group, over the group's sample standard deviation (GRPO, arXiv 2402.03300, 4.1.2).

    In a group of equal rewards it is 0.
    """
    centred = prompt_mean(rewards, groups, lengths)
    sizes = np.bincount(groups)
    std = np.sqrt(np.bincount(groups, centred**2) / np.maximum(sizes - 1, 1))[groups]
    return centred / (std + 1e-6)


def leave_one_out(rewards: np.ndarray, groups: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """r less the mean of the others of its group (RLOO, arXiv 2402.14740)."""
    sizes = np.bincount(groups)[groups]
    return prompt_mean(rewards, groups, lengths) * sizes / np.maximum(sizes - 1, 1)


def length_weighted(rewards: np.ndarray, groups: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """r less the mean of its group weighted by length: OPO's baseline of least variance (arXiv 2505.23585)."""
    baseline = np.bincount(groups, rewards * lengths) / np.maximum(np.bincount(groups, lengths), 1)
    return rewards - baseline[groups]


def soft(rewards: np.ndarray, groups: np.ndarray, tau: float) -> np.ndarray:
    """r less τ·log of the group's mean of e^{r/τ}: the value for which DRO's optimum is π_old·e^{r/τ}/Z.

    Source: Richemond et al. (arXiv 2405.19107): the optimal V(x) = τ·log E[e^{r/τ}] over completions of π_old.
    """
    scaled = rewards / tau
    top = np.full(groups.max(initial=-1) + 1, -np.inf)
    np.maximum.at(top, groups, scaled)  # keeps the exponentials at most 1
    mean = np.bincount(groups, np.exp(scaled - top[groups])) / np.bincount(groups)
    return rewards - (tau * (np.log(mean) + top))[groups]
