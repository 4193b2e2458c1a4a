"""Estimators of advantages, each by a number worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from megatron_rl.advantages import ESTIMATORS, Completions, Options, estimate_advantages
from megatron_rl.advantages.returns import gae, rewards_to_go, token_rewards

REWARDS = np.array([1.0, 0.0, 1.0, 2.0, 0.5, 3.0])
PROMPTS = ["a", "a", "b", "b", "a", "b"]
LENGTHS = [1, 2, 3, 1, 3, 2]
MASKS = [np.ones(n, bool) for n in LENGTHS]


def estimate(name, rewards=REWARDS, groups=PROMPTS, masks=MASKS, normalize=False, tau=None, gamma=1.0, **more):
    completions = Completions(rewards=rewards, groups=groups, masks=masks, **more)
    return estimate_advantages(name, completions, options=Options(tau, gamma), normalize=normalize)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", REWARDS),
        ("batch-mean", REWARDS - 1.25),
        ("prompt-mean", [0.5, -0.5, -1, 0, 0, 1]),
        ("group-mean", [0.5, -0.5, -1, 0, 0, 1]),
        # sample deviations .5 and 1
        ("group-mean-std", [1, -1, -1, 0, 0, 1]),
        ("leave-one-out", [0.75, -0.75, -1.5, 0, 0, 1.5]),
        # (1·1 + 2·0 + 3·.5)/6 and (3·1 + 1·2 + 2·3)/6
        ("opo", REWARDS - np.array([2.5, 2.5, 11, 11, 2.5, 11]) / 6),
    ],
)
def test_baselines(name, expected):
    np.testing.assert_allclose(estimate(name), expected, atol=3e-6)


def test_group_std_does_not_divide_equal_rewards():
    assert estimate("group-mean-std", rewards=np.ones(6)) == pytest.approx(np.zeros(6))


@pytest.mark.parametrize("shift", [0.0, 2000.0])
def test_soft_baseline(shift):
    tau, exp = 0.5, np.exp(REWARDS / 0.5)
    a, b = tau * np.log(exp[[0, 1, 4]].mean()), tau * np.log(exp[[2, 3, 5]].mean())
    found = estimate("soft", rewards=REWARDS + shift, tau=tau)
    np.testing.assert_allclose(found, REWARDS - np.array([a, a, b, b, a, b]), rtol=1e-9, atol=1e-9)
    everything = estimate("batch-soft", rewards=REWARDS + shift, tau=tau)
    np.testing.assert_allclose(everything, REWARDS - tau * np.log(exp.mean()), rtol=1e-9, atol=1e-9)


def test_under_the_soft_baseline_the_mean_of_exponential_advantages_is_one():
    found = estimate("soft", tau=0.3)
    for rows in ([0, 1, 4], [2, 3, 5]):
        assert np.exp(found[rows] / 0.3).mean() == pytest.approx(1, rel=1e-12)


def test_remax_takes_the_greedy_reward():
    found = estimate("remax", baseline_rewards=np.array([1, 1, 2, 2, 1, 2]))
    np.testing.assert_allclose(found, REWARDS - [1, 1, 2, 2, 1, 2])


def test_precomputed_is_what_the_rows_say():
    given = [np.arange(n, dtype=np.float32) for n in LENGTHS]
    assert all((f == g).all() for f, g in zip(estimate("precomputed", given=given), given, strict=True))


def test_reinforce_plus_plus_is_whitened_over_all_tokens():
    found = estimate("reinforce++")
    per_token = np.repeat(REWARDS, LENGTHS)
    np.testing.assert_allclose(np.concatenate(found), (per_token - per_token.mean()) / per_token.std(), rtol=1e-6)


def test_reinforce_plus_plus_with_discount_and_charges():
    charges = [np.full(n, 0.1) for n in LENGTHS]
    found = np.concatenate(estimate("reinforce++", gamma=0.5, charges=charges))
    # of completion 4, three tokens and reward .5: .5 − .1, then −.1 + half of it, and again
    last = 0.4
    to_go = [-0.1 + 0.5 * (-0.1 + 0.5 * last), -0.1 + 0.5 * last, last]
    spread = found[7 + np.array([0, 1, 2])]
    slope = (spread[2] - spread[1]) / (to_go[2] - to_go[1])
    assert spread[1] - spread[0] == pytest.approx(slope * (to_go[1] - to_go[0]), rel=1e-9)
    assert found.mean() == pytest.approx(0, abs=1e-9)
    assert found.std() == pytest.approx(1, rel=1e-6)


def test_reinforce_plus_plus_baseline():
    centred = np.repeat([0.5, -0.5, -1, 0, 0, 1], LENGTHS)
    found = np.concatenate(estimate("reinforce++-baseline"))
    np.testing.assert_allclose(found, (centred - centred.mean()) / centred.std(), rtol=1e-6)


def test_charges_come_off_the_reward():
    masks = [np.array([True] * n) for n in LENGTHS]
    masks[4][1] = False
    charges = [np.full(n, 0.25) for n in LENGTHS]
    np.testing.assert_allclose(
        estimate("none", masks=masks, charges=charges), REWARDS - 0.25 * np.array([1, 2, 3, 1, 2, 2])
    )


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_gae_is_its_sum_of_residuals(lam, gamma):
    rng = np.random.default_rng(0)
    lengths = [4, 1, 7]
    rewards, values = ([rng.normal(size=n) for n in lengths] for _ in range(2))
    masks = [np.ones(n, bool) for n in lengths]
    advantages, returns = gae(rewards, values, masks, gamma=gamma, lam=lam)
    for r, v, a, g in zip(rewards, values, advantages, returns, strict=True):
        n = len(r)
        residuals = [r[t] + (gamma * v[t + 1] if t + 1 < n else 0) - v[t] for t in range(n)]
        expected = [sum((gamma * lam) ** (s - t) * residuals[s] for s in range(t, n)) for t in range(n)]
        np.testing.assert_allclose(a, expected, rtol=1e-12)
        np.testing.assert_allclose(g, np.array(expected) + v, rtol=1e-12)


def test_gae_passes_over_what_does_not_count():
    mask = np.array([True, False, True])
    with_gap = gae([np.array([1.0, 9.0, 2.0])], [np.array([0.5, 9.0, 0.25])], [mask], gamma=0.9, lam=0.8)
    without = gae([np.array([1.0, 2.0])], [np.array([0.5, 0.25])], [np.ones(2, bool)], gamma=0.9, lam=0.8)
    for a, b in zip(with_gap, without, strict=True):
        assert a[0].tolist() == [b[0][0], 0, b[0][1]]


def test_the_reward_is_on_the_last_token_that_counts():
    mask = np.array([True, True, False])
    (found,) = token_rewards([2.0], [np.full(3, 0.5)], [mask])
    assert found.tolist() == [-0.5, 1.5, 0]
    assert rewards_to_go([found], [mask])[0].tolist() == [1.0, 1.5, 0]


def test_there_is_no_division_by_std_unless_asked():
    np.testing.assert_allclose(estimate("batch-mean", rewards=10 * REWARDS), 10 * (REWARDS - 1.25))
    assert np.std(estimate("batch-mean", rewards=10 * REWARDS, normalize=True)) == pytest.approx(1)
    assert np.concatenate(
        estimate("precomputed", given=[np.arange(n) * 3.0 for n in LENGTHS], normalize=True)
    ).std() == pytest.approx(1)


def test_equal_rewards_have_no_spread_to_divide_by():
    assert list(estimate("batch-mean", rewards=np.ones(6), normalize=True)) == [0] * 6


@pytest.mark.parametrize("name", [n for n, e in ESTIMATORS.items() if e.compares and e.compute])
def test_a_group_of_one_is_an_error_that_names_the_row(name):
    with pytest.raises(ValueError, match=r"\[3\]"):
        estimate(name, groups=["a", "a", "b", "c", "a", "b"], tau=1.0)


@pytest.mark.parametrize("name", ["median", "gae", "value", "dro"])
def test_an_estimator_that_cannot_be_used_here(name):
    with pytest.raises(ValueError, match="prompt-mean"):
        estimate(name)


def test_no_rows_have_no_advantages():
    for name in ("none", "group-mean-std", "opo", "reinforce++", "soft"):
        assert len(estimate(name, rewards=np.zeros(0), groups=[], masks=[], tau=1.0)) == 0
