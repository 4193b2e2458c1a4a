"""Advantages of single tokens: rewards to come, with or without a value model.

Rewards per token are those of the completion at its last counting token, and what each token is charged for
(`reward_kl_coef`). Arrays are flat over the completions' tokens, one completion after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def token_rewards(
    rewards: Sequence[float], charges: Sequence[np.ndarray], masks: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """For each completion [c]: minus the charges, and the reward on its last counting token."""
    found = []
    for reward, charge, mask in zip(rewards, charges, masks, strict=True):
        values = np.where(mask, -np.asarray(charge, np.float64), 0.0)
        if mask.any():
            values[np.flatnonzero(mask)[-1]] += reward
        found.append(values)
    return found


def rewards_to_go(
    rewards: Sequence[np.ndarray], masks: Sequence[np.ndarray], *, gamma: float = 1.0
) -> list[np.ndarray]:
    """For each completion [c]: Σ_{s≥t} γ^{s−t}·r_s over its counting tokens; 0 at the others."""
    no_values = [np.zeros(len(mask)) for mask in masks]
    return gae(rewards, no_values, masks, gamma=gamma, lam=1.0)[0]


def gae(
    rewards: Sequence[np.ndarray],
    values: Sequence[np.ndarray],
    masks: Sequence[np.ndarray],
    *,
    gamma: float,
    lam: float,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Generalised advantage estimation.

    Only counting tokens are steps: what stands between them, such as a tool's output, is passed over.

    Args:
        rewards, values, masks: for each completion [c]; values are V of the state before each token.

    Returns:
        for each completion advantages [c] and returns [c] (advantage + value), 0 where the mask is not set.

    Source: Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation"
    (arXiv 1506.02438, eq. 16).
    """
    lengths = np.array([int(mask.sum()) for mask in masks], dtype=np.int64)
    steps = np.arange(lengths.max(initial=0)) < lengths[:, None]
    table = {name: np.zeros(steps.shape) for name in ("reward", "value", "advantage")}
    table["reward"][steps] = np.concatenate([[], *(r[m] for r, m in zip(rewards, masks, strict=True))])
    table["value"][steps] = np.concatenate([[], *(v[m] for v, m in zip(values, masks, strict=True))])
    value = advantage = np.zeros(len(masks))
    for t in reversed(range(steps.shape[1])):
        delta = table["reward"][:, t] + gamma * value - table["value"][:, t]
        advantage = np.where(steps[:, t], delta + gamma * lam * advantage, 0.0)
        value = np.where(steps[:, t], table["value"][:, t], 0.0)
        table["advantage"][:, t] = advantage
    found = []
    for numbers in (table["advantage"], table["advantage"] + table["value"]):
        spread = [np.zeros(len(mask)) for mask in masks]
        for to, row, mask, length in zip(spread, numbers, masks, lengths, strict=True):
            to[mask] = row[:length]
        found.append(spread)
    return found[0], found[1]


def whiten(advantages: Sequence[np.ndarray], masks: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Every counting token's advantage less their mean and over their standard deviation, over all completions."""
    counting = np.concatenate([[], *(a[m] for a, m in zip(advantages, masks, strict=True))])
    mean, std = (counting.mean(), counting.std()) if len(counting) else (0.0, 0.0)
    return [np.where(m, (a - mean) / (std + 1e-8), 0.0) for a, m in zip(advantages, masks, strict=True)]
