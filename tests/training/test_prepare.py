"""What a step does to its batch before the first backward pass."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from megatron_rl.data.global_batch import BatchLayout, GlobalBatch
from megatron_rl.data.samples import Sample
from megatron_rl.losses import build_policy_loss
from megatron_rl.losses.off_policy import ImportanceWeights, Rejection
from megatron_rl.training.objective import Objective
from megatron_rl.training.prepare import prepare_batch

CPU = torch.device("cpu")
LENGTHS = [2, 3, 1]
TOKENS = sum(LENGTHS)


def batch(**columns):
    samples = [
        Sample(np.arange(n + 1), 1, group=str(i // 2), loss_mask=np.ones(n, bool), reward=float(i))
        for i, n in enumerate(LENGTHS)
    ]
    rewards = np.repeat(np.arange(3, dtype=np.float32), LENGTHS)
    groups = np.repeat([0, 0, 1], LENGTHS)
    return GlobalBatch(samples, {"rewards": rewards, "groups": groups} | columns)


def objective(loss="vanilla", **more):
    return Objective(build_policy_loss(loss), "token-mean", None, 1.0, 10, **more)


def logs(*ratios):
    return np.log(np.array(ratios, np.float32))


def test_rejection_comes_before_the_counts():
    """Of six tokens in three sequences two are left out, and with the second a whole sequence."""
    given = batch(old_logprobs=logs(1, 1, 1, 3, 1, 5), rollout_logprobs=np.zeros(TOKENS, np.float32))
    found = prepare_batch(given, objective(rejections=(Rejection.parse("token_k1:2"),)), {}, CPU, 0)
    assert found.batch.mask.tolist() == [True, True, True, False, True, False]
    assert (found.batch.info.num_tokens, found.batch.info.num_sequences) == (4, 2)
    (micro_batch,) = found.batch.micro_batches(BatchLayout(64))
    assert micro_batch.mask.sum() == 4
    assert float(found.numbers["rollout_rejected_tokens"]) == pytest.approx(2 / 6)
    assert float(found.numbers["rollout_rejected_sequences"]) == pytest.approx(1 / 3)


def test_criteria_are_joined():
    given = batch(old_logprobs=logs(1, 1, 1, 3, 1, 5), rollout_logprobs=np.zeros(TOKENS, np.float32))
    criteria = (Rejection.parse("token_k1:4"), Rejection.parse("max_k1:2"))
    found = prepare_batch(given, objective(rejections=criteria), {}, CPU, 0)
    assert found.batch.mask.tolist() == [True, True, False, False, False, False]


def test_three_policies_are_kept_apart():
    """Decoupled PPO: weights are old over sampler, and the loss still compares with the old policy."""
    given = batch(old_logprobs=logs(1, 1, 2, 3, 1, 8), rollout_logprobs=logs(1, 2, 1, 1, 1, 1))
    found = prepare_batch(given, objective(weights=ImportanceWeights("token", 5.0)), {}, CPU, 0)
    assert found.columns["rollout_weights"].tolist() == pytest.approx([1, 0.5, 2, 3, 1, 5], rel=1e-6)
    assert found.columns["old_logprobs"].tolist() == given.columns["old_logprobs"].tolist()
    weights = [1, 0.5, 2, 3, 1, 5]
    share = sum(weights) ** 2 / (6 * sum(w * w for w in weights))
    assert float(found.numbers["rollout_effective_share"]) == pytest.approx(share, rel=1e-6)


@pytest.mark.parametrize(("loss", "more"), [("bypass_mode", {}), ("vanilla", {"old_is_current": True}), ("gpg", {})])
def test_without_a_third_policy_the_current_one_is_compared_with_the_sampler(loss, more):
    given = batch(old_logprobs=logs(*[9] * 6), rollout_logprobs=np.zeros(TOKENS, np.float32))
    if loss == "gpg":
        more = {"old_is_current": True}
    asked = objective(loss, rejections=(Rejection.parse("token_k1:2"),), **more)
    assert asked.measures_logprobs
    measured = {"logprobs": torch.from_numpy(logs(1, 3, 1, 1, 1, 1))}
    found = prepare_batch(given, asked, measured, CPU, 0)
    assert found.batch.mask.tolist() == [True, False, True, True, True, True]
    if loss == "bypass_mode":
        assert found.columns["old_logprobs"].tolist() == [0] * 6
    else:
        assert "old_logprobs" not in found.columns


def test_the_self_consistent_baseline():
    """A = r less its group's mean of r − τ·log-ratio, over the sequences that count."""
    lr = np.array([0.1, 0.2, 0.3, -0.4, 0.5, 1.0], np.float32)
    given = batch(old_logprobs=np.zeros(TOKENS, np.float32))
    asked = objective(estimator="dro", tau=2.0)
    found = prepare_batch(given, asked, {"logprobs": torch.from_numpy(lr)}, CPU, 0)
    x = [0 - 2 * 0.3, 1 - 2 * 0.4]
    baseline = sum(x) / 2
    expected = [0 - baseline] * 2 + [1 - baseline] * 3 + [2 - (2 - 2 * 1.0)]
    assert found.columns["advantages"].tolist() == pytest.approx(expected, rel=1e-6)


def test_advantages_by_a_value_of_the_prompt():
    values = torch.tensor([0.5, 9.0, 0.25, 9.0, 9.0, -1.0])
    found = prepare_batch(batch(), objective(estimator="value", old_is_current=True), {"values": values}, CPU, 0)
    assert found.columns["advantages"].tolist() == pytest.approx([-0.5] * 2 + [0.75] * 3 + [3.0])
    assert found.columns["returns"].tolist() == [0, 0, 1, 1, 1, 2]


def test_advantages_by_gae():
    values = torch.tensor([0.5, 0.25, 0.0, 0.0, 0.5, -1.0])
    asked = objective(estimator="gae", gamma=0.9, lam=0.8, old_is_current=True)
    found = prepare_batch(batch(charges=np.full(TOKENS, 0.1, np.float32)), asked, {"values": values}, CPU, 0)
    last = 1 - 0.1 - 0.5
    middle = -0.1 + 0.9 * 0.5 - 0.0 + 0.72 * last
    assert found.columns["advantages"].tolist()[2:] == pytest.approx(
        [-0.1 + 0.9 * 0.0 - 0.0 + 0.72 * middle, middle, last, 2 - 0.1 + 1], rel=1e-6
    )
    assert found.columns["returns"].tolist()[-1] == pytest.approx(1.9)


def test_normalised_advantages_have_a_deviation_of_one():
    values = torch.tensor([0.5, 9.0, 0.25, 9.0, 9.0, -1.0])
    asked = objective(estimator="value", old_is_current=True, normalize_advantages=True)
    found = prepare_batch(batch(), asked, {"values": values}, CPU, 0)
    assert float(found.columns["advantages"].std(correction=0)) == pytest.approx(1, rel=1e-6)


def test_everything_rejected():
    given = batch(old_logprobs=logs(*[9] * 6), rollout_logprobs=np.zeros(TOKENS, np.float32))
    asked = objective(rejections=(Rejection.parse("token_k1:2"),), weights=ImportanceWeights("sequence"))
    found = prepare_batch(given, asked, {}, CPU, 0)
    assert found.batch.info.num_tokens == 0
    assert all(math.isfinite(float(value)) for value in found.numbers.values())
