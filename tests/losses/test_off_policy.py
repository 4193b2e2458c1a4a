"""Importance weights and rejection, by numbers worked out by hand, and the terms beside the loss."""

from __future__ import annotations

import math

import pytest
import torch

from megatron_rl.losses import KL_KINDS, kl_estimate
from megatron_rl.losses.off_policy import ImportanceWeights, Rejection
from megatron_rl.losses.segments import Segments

NAN = math.nan
# two sequences of three tokens; the last of the second is masked and holds what no number should meet
RATIOS = torch.tensor([1.0, 3.0, 0.5, 0.1, 1.5, NAN], dtype=torch.float64)
MASK = torch.tensor([True, True, True, True, True, False])
SEGMENTS = Segments(torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([3.0, 2.0], dtype=torch.float64))
LR = RATIOS.log()


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (ImportanceWeights("token"), [1, 2, 0.5, 0.1, 1.5, 0]),
        (ImportanceWeights("token", threshold=5.0), [1, 3, 0.5, 0.1, 1.5, 0]),
        (ImportanceWeights("token", threshold=2.0, lower=0.4), [1, 0, 0.5, 0, 1.5, 0]),
        (ImportanceWeights("sequence"), [1.5, 1.5, 1.5, 0.15, 0.15, 0]),
        (ImportanceWeights("sequence", threshold=1.2), [1.2, 1.2, 1.2, 0.15, 0.15, 0]),
        (ImportanceWeights("sequence", threshold=2.0, lower=0.5), [1.5, 1.5, 1.5, 0, 0, 0]),
    ],
)
def test_weights(weights, expected):
    assert weights(LR, MASK, SEGMENTS).tolist() == pytest.approx(expected, rel=1e-12)


def test_weights_of_a_far_off_sequence_are_finite():
    weights = ImportanceWeights("sequence", threshold=1e30)
    found = weights(torch.full((6,), 400.0), torch.ones(6, dtype=torch.bool), SEGMENTS)
    assert found.isfinite().all()


def k2(r):
    return math.log(r) ** 2 / 2


def k3(r):
    return r - 1 - math.log(r)


@pytest.mark.parametrize(
    ("text", "rejected"),
    [
        ("token_k1:2", [0, 1, 0, 1, 0]),  # outside [1/2, 2]
        ("token_k1:0.05:2", [0, 1, 0, 0, 0]),
        (f"token_k2:{(k2(3.0) + k2(0.1)) / 2}", [0, 0, 0, 1, 0]),
        (f"token_k3:{k3(3.0) + 0.01}", [0, 0, 0, 1, 0]),
        (f"token_k3:{k3(3.0) - 0.01}", [0, 1, 0, 1, 0]),
        # geometric means 1.145 and .387
        ("sequence_k1:2", [0, 0, 0, 1, 1]),
        ("sequence_k1:0.3:1.1", [1, 1, 1, 0, 0]),
        (f"sequence_k3:{(k3(3.0) + k3(0.5)) / 3 + 0.01}", [0, 0, 0, 1, 1]),
        (f"sequence_k2:{(k2(0.1) + k2(1.5)) / 2 + 0.01}", [0, 0, 0, 0, 0]),
        # products 1.5 and .15
        ("sum_k1:0.1:1.4", [1, 1, 1, 0, 0]),
        ("sum_k1:0.2:1.6", [0, 0, 0, 1, 1]),
        (f"sum_k3:{k3(3.0) + k3(0.5) - 0.01}", [1, 1, 1, 1, 1]),
        ("max_k1:0.05:2.5", [1, 1, 1, 0, 0]),
        (f"max_k2:{k2(3.0) + 0.01}", [0, 0, 0, 1, 1]),
    ],
)
def test_rejection(text, rejected):
    found = Rejection.parse(text)(LR, MASK, SEGMENTS)
    assert found[MASK].int().tolist() == rejected


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("tokens_k1:2", "'tokens_k1' is no criterion"),
        ("token_k4:2", "'token_k4' is no criterion"),
        ("token:2", "is no criterion"),
        ("token_k1", "needs one bound or two"),
        ("token_k3:0.1:0.2", "needs one bound"),
        ("token_k1:a", "needs one bound or two"),
        ("token_k1:nan", "needs one bound or two"),
        ("token_k3:-1", "needs one bound"),
        ("token_k1:0.5:0.9", "must let the ratio 1 pass"),
        ("token_k1:2:0.5", "must let the ratio 1 pass"),
    ],
)
def test_a_criterion_that_cannot_be_read(text, part):
    with pytest.raises(ValueError, match=part):
        Rejection.parse(text)


@pytest.mark.parametrize(("kind", "value"), [("k1", 0.5), ("k2", 0.125), ("k3", math.exp(-0.5) - 0.5), ("abs", 0.5)])
@pytest.mark.parametrize("sign", [1, -1])
def test_estimates_of_the_divergence(kind, value, sign):
    lp = torch.tensor([-1.0 + 0.5 * sign], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-1.0], dtype=torch.float64)
    if sign < 0:
        value = {"k1": -0.5, "k3": math.exp(0.5) - 1.5}.get(kind, value)
    slope = {"k1": 1.0, "k2": 0.5 * sign, "k3": 1 - math.exp(-0.5 * sign), "abs": sign}[kind]
    for name, gradient in ((kind, slope), (f"{kind}+", 0.5 * sign)):
        found = kl_estimate(lp, reference, name)
        assert found.item() == pytest.approx(value, rel=1e-12)
        assert torch.autograd.grad(found.sum(), lp)[0].item() == pytest.approx(gradient, rel=1e-12)


def test_expected_estimates_and_gradients():
    """Over the policy itself k1 and k3 are the divergence, and k2's gradient is its gradient."""
    logits = torch.tensor([0.3, -0.5, 1.1, 0.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.1, 0.4, -0.3, 0.2], dtype=torch.float64).log_softmax(0)
    lp = logits.log_softmax(0)
    p = lp.exp().detach()
    divergence = (lp.exp() * (lp - reference)).sum()
    (gradient,) = torch.autograd.grad(divergence, logits, retain_graph=True)
    for kind in KL_KINDS:
        expected = (p * kl_estimate(lp, reference, kind)).sum()
        if kind.rstrip("+") in ("k1", "k3"):
            assert expected.item() == pytest.approx(divergence.item(), rel=1e-12)
        if kind == "k2" or kind.endswith("+"):
            (found,) = torch.autograd.grad(expected, logits, retain_graph=True)
            torch.testing.assert_close(found, gradient)
    (plain,) = torch.autograd.grad((p * kl_estimate(lp, reference, "k1")).sum(), logits)
    torch.testing.assert_close(plain, torch.zeros_like(plain), rtol=0, atol=1e-15)


def test_an_unknown_estimate():
    with pytest.raises(ValueError, match="k3"):
        kl_estimate(torch.zeros(1), torch.zeros(1), "k4")
