"""Laws that every policy loss obeys, and the formulas of the other losses."""

from __future__ import annotations

import math

import pytest
import torch

from megatron_rl.losses import (
    AGG_MODES,
    GlobalBatchInfo,
    PolicyBatch,
    build_policy_loss,
    policy_loss_names,
    token_weights,
    weighted_sum,
)
from megatron_rl.metrics.reduce import reduce_metrics

OPTIONS = {"dro": {"beta": 0.3}}
LENGTHS = [1, 7, 3, 12, 2, 5]


def make_loss(name):
    return build_policy_loss(name, **OPTIONS.get(name, {}))


def tokens(seed=0):
    """Six sequences end to end, some tokens masked, one sequence wholly."""
    g = torch.Generator().manual_seed(seed)
    n = sum(LENGTHS)
    sequence = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    mask = torch.rand(n, generator=g) > 0.2
    mask[sequence == 4] = False
    old = -torch.rand(n, generator=g, dtype=torch.float64) * 3
    return {
        "logprobs": old + 0.5 * torch.randn(n, generator=g, dtype=torch.float64),
        "old_logprobs": old,
        "advantages": torch.randn(n, generator=g, dtype=torch.float64),
        "mask": mask,
        "sequence": sequence,
    }


def info_and_counts(data):
    counts = torch.zeros(len(LENGTHS), dtype=torch.float64).index_add(0, data["sequence"], data["mask"].double())
    return GlobalBatchInfo(int(counts.sum()), int((counts > 0).sum())), counts


def loss_of(loss, data, rows, info, counts, mode):
    """Σ weight·value of the tokens `rows`, and their metrics; what one micro-batch contributes."""
    batch = PolicyBatch.masked(**{k: data[k][rows] for k in ("logprobs", "old_logprobs", "advantages", "mask")})
    weights = token_weights(mode, info, counts[data["sequence"][rows]], loss_scale_factor=12.0)
    found = loss(batch)
    return weighted_sum(found.values, weights, batch.mask), found.metrics


@pytest.mark.parametrize("mode", AGG_MODES)
@pytest.mark.parametrize("name", policy_loss_names())
def test_value_gradient_and_metrics_do_not_depend_on_the_cut(name, mode):
    data = tokens()
    loss, (info, counts) = make_loss(name), info_and_counts(data)
    n = len(data["mask"])
    results = []
    for cut in ([n], [1] * n, [5, 10, n - 15], [n - 1, 1]):
        data["logprobs"] = data["logprobs"].detach().requires_grad_()
        parts = [loss_of(loss, data, rows, info, counts, mode) for rows in torch.arange(n).split(cut)]
        total = sum(value for value, _ in parts)
        (gradient,) = torch.autograd.grad(total, data["logprobs"])
        results.append((total.item(), gradient, reduce_metrics([m for _, m in parts], None).numbers))
    whole, *others = results
    for value, gradient, numbers in others:
        assert value == pytest.approx(whole[0], rel=1e-12, abs=1e-15)
        torch.testing.assert_close(gradient, whole[1], rtol=1e-12, atol=1e-15)
        # quantiles are kept in fp32
        assert numbers == pytest.approx(whole[2], rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("name", policy_loss_names())
def test_gradient_is_that_of_finite_differences(name):
    data = tokens(seed=3)
    loss, (info, counts) = make_loss(name), info_and_counts(data)
    rows = torch.arange(len(data["mask"]))

    def value(logprobs):
        return loss_of(loss, data | {"logprobs": logprobs}, rows, info, counts, "token-mean")[0]

    torch.autograd.gradcheck(value, (data["logprobs"].requires_grad_(),))


@pytest.mark.parametrize("name", policy_loss_names())
@pytest.mark.parametrize("poison", [-math.inf, math.nan])
def test_masked_tokens_are_harmless(name, poison):
    data = tokens()
    loss, (info, counts) = make_loss(name), info_and_counts(data)
    rows = torch.arange(len(data["mask"]))
    clean, _ = loss_of(loss, data, rows, info, counts, "token-mean")
    for key in ("logprobs", "old_logprobs", "advantages"):
        data[key] = data[key].masked_fill(~data["mask"], poison)
    data["logprobs"].requires_grad_()
    poisoned, metrics = loss_of(loss, data, rows, info, counts, "token-mean")
    poisoned.backward()
    assert poisoned.item() == clean.item()
    assert data["logprobs"].grad.isfinite().all()
    assert (data["logprobs"].grad[~data["mask"]] == 0).all()
    assert all(v is None or math.isfinite(v) for v in reduce_metrics([metrics], None).numbers.values())


@pytest.mark.parametrize("name", policy_loss_names())
def test_all_masked_batch_gives_zero(name):
    data = tokens()
    data["mask"] = torch.zeros_like(data["mask"])
    data["logprobs"].requires_grad_()
    rows = torch.arange(len(data["mask"]))
    value, _ = loss_of(make_loss(name), data, rows, *info_and_counts(data), "token-mean")
    value.backward()
    assert value.item() == 0
    assert (data["logprobs"].grad == 0).all()


def vanilla(ratio, advantage, **options):
    batch = PolicyBatch.masked(
        logprobs=torch.tensor([math.log(ratio)], dtype=torch.float64),
        old_logprobs=torch.zeros(1, dtype=torch.float64),
        advantages=torch.tensor([advantage], dtype=torch.float64),
        mask=torch.tensor([True]),
    )
    return build_policy_loss("vanilla", **options)(batch).values.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "options", "loss"),
    [
        (1.1, 2, {}, -2.2),
        (1.5, 2, {}, -2.4),  # clipped at 1.2
        (0.5, 2, {}, -1.0),  # the pessimistic side is not clipped
        (0.5, -2, {}, 1.6),  # clipped at 0.8
        (1.5, -2, {}, 3.0),
        (5.0, -2, {}, 6.0),  # bounded at c = 3
        (5.0, -2, {"clip_ratio_c": 10.0}, 10.0),
        (1.5, 2, {"clip_ratio_high": 0.3}, -2.6),
        (0.5, -2, {"clip_ratio_low": 0.4}, 1.2),
        (1.5, 2, {"clip_ratio": 0.1}, -2.2),
    ],
)
def test_ppo_clip(ratio, advantage, options, loss):
    assert vanilla(ratio, advantage, **options) == pytest.approx(loss, rel=1e-12)


def test_ppo_survives_a_ratio_beyond_fp32():
    batch = PolicyBatch.masked(
        logprobs=torch.tensor([0.0], requires_grad=True),
        old_logprobs=torch.tensor([-500.0]),
        advantages=torch.tensor([-1.0]),
        mask=torch.tensor([True]),
    )
    values = build_policy_loss("vanilla")(batch).values
    assert values.item() == pytest.approx(3.0)


def test_a_misspelt_loss_gets_a_suggestion():
    with pytest.raises(ValueError, match="did you mean 'vanilla'"):
        build_policy_loss("vanila")


def test_several_wrong_options_are_reported_together():
    with pytest.raises(ValueError, match="clip_ratio .*clip_ratio_c"):
        build_policy_loss("vanilla", clip_ratio=True, clip_ratio_c=0.5)
