"""DRO at token level against values worked out by hand: loss and gradient, weights, masks, options."""

from __future__ import annotations

import math

import pytest
import torch

from megatron_rl.losses import build_policy_loss, compute_policy_loss

INF = math.inf
OLD, NEW = [-1.0, -0.7, -0.2], [-0.8, -0.9, -0.1]


def run(old, new, mask, advantages, beta, weights=None):
    logprobs = torch.tensor([new], dtype=torch.float64, requires_grad=True)
    loss, _ = compute_policy_loss(
        build_policy_loss("dro", beta=beta),
        old_log_prob=torch.tensor([old], dtype=torch.float64),
        log_prob=logprobs,
        advantages=torch.tensor([advantages], dtype=torch.float64),
        response_mask=torch.tensor([mask]),
        rollout_is_weights=None if weights is None else torch.tensor([weights], dtype=torch.float64),
    )
    loss.backward()
    return loss.item(), logprobs.grad[0].tolist()


@pytest.mark.parametrize(
    ("old", "new", "mask", "advantages", "beta", "weights", "loss", "gradient"),
    [
        # advantage 0 does not remove a token: the penalty stays
        (OLD, NEW, [1, 1, 0], [0, 0, 0], 2, None, 0.04, [0.2, -0.2, 0]),
        (OLD, NEW, [1, 1, 0], [2, -1.5, 9], 0.05, None, 0.126, [-0.995, 0.745, 0]),
        # importance weights multiply the penalty too
        (OLD, NEW, [1, 1, 0], [2, -1.5, 9], 0.05, [2, 0.5, 7], 1.26375, [-1.99, 0.3725, 0]),
        ([-200.0], [-0.01], [1], [1], 0.05, None, 999.91, [8.9995]),
        ([-2.0] * 10, [-1.0] * 10, [1] * 10, [1] * 10, 0.5, None, 1.25, [-0.05] * 10),
    ],
)
def test_loss_and_gradient(old, new, mask, advantages, beta, weights, loss, gradient):
    found_loss, found_gradient = run(old, new, mask, advantages, beta, weights)
    # fp64 arithmetic on values with few digits: only the last bits may differ
    assert found_loss == pytest.approx(loss, rel=1e-6 if loss > 100 else 1e-12)
    assert found_gradient == pytest.approx(gradient, rel=1e-12)


@pytest.mark.parametrize("poison", [-INF, INF, math.nan])
@pytest.mark.parametrize("where", ["new", "old", "advantage", "weight"])
def test_what_stands_at_a_masked_token_is_harmless(poison, where):
    given = {"new": list(NEW), "old": list(OLD), "advantage": [2, -1.5, 9], "weight": [1.0, 1.0, 1.0]}
    given[where][2] = poison
    loss, gradient = run(given["old"], given["new"], [1, 1, 0], given["advantage"], 0.05, given["weight"])
    assert loss == pytest.approx(0.126, rel=1e-12)
    assert gradient == pytest.approx([-0.995, 0.745, 0], rel=1e-12)


def test_everything_masked_gives_zero_and_no_gradient():
    loss, gradient = run(OLD, [-INF, math.nan, -0.1], [0, 0, 0], [2, -1.5, 9], 0.05)
    assert loss == 0
    assert gradient == [0, 0, 0]


@pytest.mark.parametrize("beta", [None, "0.05", True, math.nan, INF, -INF, 0, -0.1])
def test_beta_must_be_a_positive_finite_number(beta):
    with pytest.raises(ValueError, match="dro_beta"):
        build_policy_loss("dro", beta=beta)


def test_beta_is_required():
    with pytest.raises(ValueError, match="dro_beta is required"):
        build_policy_loss("dro")


def test_fixed_point_of_a_token_is_advantage_over_beta():
    """∂loss/∂log π = 0 where log π − log π_old = A/β."""
    _, gradient = run([-3.0], [-3.0 + 0.8 / 0.4], [1], [0.8], 0.4)
    assert gradient == pytest.approx([0], abs=1e-12)
