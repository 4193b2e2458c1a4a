"""Advantage estimators by name, and which of them need what."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from megatron_rl.advantages import baselines
from megatron_rl.advantages.returns import rewards_to_go, token_rewards, whiten


@dataclass(frozen=True)
class Completions:
    """What advantages are made of, for R completions.

    rewards: [R] float. groups: [R], equal for completions of one prompt. masks: for each [c] bool, tokens that count.
    charges: for each [c] float, taken from its tokens' rewards (a penalty on divergence); None for no charges.
    baseline_rewards: [R], of another completion of the same prompt. given: for each [c], advantages from the data.
    """

    rewards: np.ndarray
    groups: Sequence[Hashable]
    masks: Sequence[np.ndarray]
    charges: Sequence[np.ndarray] | None = None
    baseline_rewards: np.ndarray | None = None
    given: Sequence[np.ndarray] | None = None

    @property
    def group_numbers(self) -> np.ndarray:
        """[R] int64, from 0 in the order of first appearance."""
        numbers: dict[Hashable, int] = {}
        return np.array([numbers.setdefault(group, len(numbers)) for group in self.groups], dtype=np.int64)

    @property
    def lengths(self) -> np.ndarray:
        """[R], counting tokens."""
        return np.array([mask.sum() for mask in self.masks], dtype=np.int64)

    @property
    def totals(self) -> np.ndarray:
        """[R] float64, each completion's reward less its charges."""
        rewards = np.asarray(self.rewards, np.float64)
        if self.charges is None:
            return rewards
        charged = [charge[mask].sum() for charge, mask in zip(self.charges, self.masks, strict=True)]
        return rewards - np.array(charged)


@dataclass(frozen=True)
class Options:
    """tau: of the soft baselines. gamma: discount of rewards to come."""

    tau: float | None = None
    gamma: float = 1.0


Advantages = Sequence[float] | Sequence[np.ndarray]


@dataclass(frozen=True)
class Estimator:
    """How advantages come about.

    help: one line. compute: from all training rows at once, before the first step; None where it takes the model
    as it is at each step. compares: whether completions of a group are compared, so that a group of one is an error.
    reads: what it takes besides the rewards: "tau", "baseline_reward", "advantages", "state_values", "logprobs".
    """

    help: str
    compute: Callable[[Completions, Options], Advantages] | None = None
    compares: bool = False
    reads: str | None = None

    @property
    def whole_groups(self) -> bool:
        """Whether each global batch must hold groups whole."""
        return self.compares and self.compute is None


def _of_rewards(function) -> Callable[[Completions, Options], Advantages]:
    return lambda given, _: function(given.totals, given.group_numbers, given.lengths)


def _soft(given: Completions, options: Options) -> Advantages:
    return baselines.soft(given.totals, given.group_numbers, options.tau)


def _batch_soft(given: Completions, options: Options) -> Advantages:
    return baselines.soft(given.totals, np.zeros(len(given.rewards), np.int64), options.tau)


def _reinforce(given: Completions, options: Options) -> Advantages:
    charges = given.charges or [np.zeros(len(mask)) for mask in given.masks]
    rewards = token_rewards(given.rewards, charges, given.masks)
    return whiten(rewards_to_go(rewards, given.masks, gamma=options.gamma), given.masks)


def _reinforce_baseline(given: Completions, options: Options) -> Advantages:
    centred = baselines.prompt_mean(given.totals, given.group_numbers, given.lengths)
    spread = [np.full(len(mask), value) for value, mask in zip(centred, given.masks, strict=True)]
    return whiten(spread, given.masks)


ESTIMATORS: dict[str, Estimator] = {
    "none": Estimator("the reward itself", lambda given, _: given.totals),
    "batch-mean": Estimator("less the mean of all training rows", _of_rewards(baselines.batch_mean)),
    "prompt-mean": Estimator(
        "less the mean of the prompt's rows (Dr. GRPO)", _of_rewards(baselines.prompt_mean), compares=True
    ),
    "group-mean": Estimator("another name of prompt-mean", _of_rewards(baselines.prompt_mean), compares=True),
    "group-mean-std": Estimator(
        "less the mean of the prompt's rows, over their standard deviation (GRPO)",
        _of_rewards(baselines.prompt_mean_std),
        compares=True,
    ),
    "leave-one-out": Estimator(
        "less the mean of the prompt's other rows (RLOO)", _of_rewards(baselines.leave_one_out), compares=True
    ),
    "opo": Estimator(
        "less the mean of the prompt's rows weighted by length (OPO)",
        _of_rewards(baselines.length_weighted),
        compares=True,
    ),
    "soft": Estimator("less tau log mean e^(r/tau) of the prompt's rows", _soft, compares=True, reads="tau"),
    "batch-soft": Estimator("less tau log mean e^(r/tau) of all training rows", _batch_soft, reads="tau"),
    "dro": Estimator(
        "less the mean of r - tau log-ratio of the prompt's rows, as the policy stands",
        compares=True,
        reads="logprobs",
    ),
    "value": Estimator("less the value model's V(prompt)", reads="state_values"),
    "gae": Estimator("generalised advantage estimation with the value model", reads="state_values"),
    "reinforce++": Estimator("rewards to come of each token, whitened over all training rows", _reinforce),
    "reinforce++-baseline": Estimator(
        "less the mean of the prompt's rows, whitened over all training rows", _reinforce_baseline, compares=True
    ),
    "remax": Estimator(
        "less the row's baseline_reward, that of a greedy completion (ReMax)",
        lambda given, _: given.totals - np.asarray(given.baseline_rewards, np.float64),
        reads="baseline_reward",
    ),
    "precomputed": Estimator("the row's own advantages", lambda given, _: given.given, reads="advantages"),
}


def estimate_advantages(
    name: str, completions: Completions, *, options: Options = Options(), normalize: bool = False
) -> Advantages:
    """The advantages of all rows of a data set, by an estimator that needs no model.

    Args:
        normalize: divide by the standard deviation over all rows (over all counting tokens, where tokens have
            advantages of their own), if it is not 0. Under DRO only the quotient of advantage and beta matters, so
            this changes what beta means.

    Returns:
        for each completion a number, or [c] numbers.

    Raises:
        ValueError: an unknown estimator, one that needs the model, or a group of one where groups are compared.
    """
    if name not in ESTIMATORS or ESTIMATORS[name].compute is None:
        known = [n for n, estimator in ESTIMATORS.items() if estimator.compute is not None]
        raise ValueError(f"{name!r} is no estimator that works from rewards alone: known are {', '.join(known)}")
    estimator = ESTIMATORS[name]
    alone = rows_alone(completions.groups) if estimator.compares else []
    if alone:
        raise ValueError(f"{name} compares the rows of a prompt, and these have none to be compared with: {alone[:20]}")
    advantages = estimator.compute(completions, options)
    if not normalize:
        return advantages
    counting = [a if np.ndim(a) == 0 else a[m] for a, m in zip(advantages, completions.masks, strict=True)]
    spread = np.hstack(counting).std()
    return [a / spread for a in advantages] if spread > 0 else advantages


def rows_alone(groups: Sequence[Hashable]) -> list[int]:
    """Positions of the rows that are the only one of their group."""
    counts: dict[Hashable, int] = {}
    for group in groups:
        counts[group] = counts.get(group, 0) + 1
    return [i for i, group in enumerate(groups) if counts[group] == 1]
