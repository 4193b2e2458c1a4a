"""Baselines."""

from __future__ import annotations

import numpy as np
import pytest

from megatron_rl.advantages import baseline_advantages

REWARDS = np.array([1.0, 0.0, 1.0, 1.0, 0.0, 3.0])
PROMPTS = ["a", "a", "b", "b", "a", "c"]


def test_none():
    assert baseline_advantages(REWARDS, PROMPTS, baseline="none").tolist() == REWARDS.tolist()


def test_batch_mean():
    np.testing.assert_allclose(baseline_advantages(REWARDS, PROMPTS), REWARDS - 1)


def test_prompt_mean_is_over_the_rows_of_a_prompt():
    found = baseline_advantages(REWARDS, PROMPTS, baseline="prompt-mean")
    np.testing.assert_allclose(found, [2 / 3, -1 / 3, 0, 0, -1 / 3, 0])


def test_there_is_no_division_by_std_unless_asked():
    plain = baseline_advantages(10 * REWARDS, PROMPTS)
    np.testing.assert_allclose(plain, 10 * (REWARDS - 1))
    assert baseline_advantages(10 * REWARDS, PROMPTS, normalize=True).std() == pytest.approx(1)


def test_equal_rewards_have_no_spread_to_divide_by():
    assert baseline_advantages(np.ones(3), ["a", "b", "c"], normalize=True).tolist() == [0, 0, 0]


def test_unknown_baseline():
    with pytest.raises(ValueError, match="prompt-mean"):
        baseline_advantages(REWARDS, PROMPTS, baseline="median")
