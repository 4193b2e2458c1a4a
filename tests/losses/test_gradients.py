"""The gradient of every loss: its formula by hand, and finite differences where nothing is held fixed.

The weight of a token is the same for all tokens of a sequence under every aggregation, so that the gradient of a
sequence is given here for the plain sum of its tokens' losses.
"""

from __future__ import annotations

import math

import pytest
import torch

from megatron_rl.losses import token_weights
from tests.losses.cases import VARIANTS, info_and_counts, make_loss, prepare, tokens, whole


class Sequence:
    """The counting tokens of one sequence, and what its formula needs."""

    def __init__(self, data, chosen, baseline):
        self.new, self.old, self.adv = (data[k][chosen] for k in ("logprobs", "old_logprobs", "advantages"))
        self.lr = self.new - self.old
        self.ratio = self.lr.exp()
        self.n = len(self.new)
        self.reward, self.value = data["rewards"][chosen][0], data["state_values"][chosen][0]
        self.prepared = None if baseline is None else baseline[chosen]


def ppo(s, low=0.2, high=0.2, c=None):
    outside = ((s.adv > 0) & (s.ratio > 1 + high)) | ((s.adv < 0) & (s.ratio < 1 - low))
    if c is not None:
        outside |= (s.adv < 0) & (s.ratio > c)
    return -s.adv * s.ratio * ~outside


def sapo(s):
    tau = torch.where(s.adv > 0, 1.0, torch.full_like(s.adv, 1.05))
    gate = torch.sigmoid(tau * (s.ratio - 1))
    return -s.adv * 4 * gate * (1 - gate) * s.ratio


def gspo(s, low, high):
    ratio = s.lr.mean().exp()
    outside = ((s.adv > 0) & (ratio > 1 + high)) | ((s.adv < 0) & (ratio < 1 - low))
    return -s.adv * ratio * ~outside


def geo_mean(s, two_sided=False):
    clipped = s.lr.clamp(-0.4, 0.4)
    if not two_sided:
        clipped = torch.where(s.adv > 0, torch.minimum(s.lr, clipped), torch.maximum(s.lr, clipped))
    return -s.adv.mean() * clipped.mean().exp() * (clipped == s.lr)


def dppo(s, outside):
    held = outside(s.old.exp(), s.new.exp()) & (s.lr * s.adv > 0)
    return -s.adv * s.ratio.clamp(max=20) * ~held


def binary_kl(p, q):
    return p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()


def residual(s, tau, baseline):
    return torch.full_like(s.new, s.reward - baseline - tau * s.lr.sum()) / s.n


FORMULAS = {
    "dro": lambda s: -(s.adv - 0.3 * s.lr),
    "dro target kl": lambda s: -(s.adv - 0.3 * s.lr),
    "dro sequence": lambda s: -(s.adv - 0.3 * s.lr.sum()),
    "vanilla": lambda s: ppo(s, c=3.0),
    "bypass_mode": ppo,
    "bypass_mode reinforce": lambda s: -s.adv,
    "importance_sampling": lambda s: -s.adv * s.ratio,
    "gpg": lambda s: -s.adv,
    "sft": lambda s: -torch.ones_like(s.new),
    "cispo": lambda s: -s.adv * s.ratio.clamp(max=1.2),
    "cispo two bounds": lambda s: -s.adv * s.ratio.clamp(0.9, 1.2),
    "gspo": lambda s: gspo(s, 3e-4, 4e-4),
    "gspo wide": lambda s: gspo(s, 0.2, 0.2),
    "sapo": sapo,
    "geo_mean": geo_mean,
    "geo_mean two sided": lambda s: geo_mean(s, two_sided=True),
    "dppo_tv": lambda s: dppo(s, lambda p, q: (q - p).abs() > 0.15),
    "dppo_kl": lambda s: dppo(s, lambda p, q: binary_kl(p, q.clamp(max=1 - 1e-12)) > 0.05),
    "clip_cov": lambda s: ppo(s) * (s.prepared == 0),
    "clip_cov many": lambda s: ppo(s) * (s.prepared == 0),
    "kl_cov": lambda s: -s.adv * s.ratio + s.prepared * s.lr.sign(),
    "kl_cov many": lambda s: -s.adv * s.ratio + 2 * s.prepared * s.lr.sign(),
    # −(r − V − τ·log-ratio): the loss is divided by τ
    "dro_v": lambda s: -residual(s, 1.0, s.value) * s.n,
    "dro_v tau": lambda s: -residual(s, 0.4, s.value) * s.n,
    # τ times as much: the variance is taken as it is
    "agro": lambda s: -residual(s, 1.0, s.prepared[0]) * s.n,
    "agro tau": lambda s: -0.4 * residual(s, 0.4, s.prepared[0]) * s.n,
}
HELD_FIXED = {"cispo", "cispo two bounds", "gspo", "gspo wide", "dppo_tv", "dppo_kl", "dro_v", "dro_v tau"}


def negative(data):
    """Probabilities below 1, as a divergence of them needs."""
    data["logprobs"] = data["logprobs"].clamp(max=-1e-3)
    return data


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("variant", VARIANTS)
def test_closed_form(variant, seed):
    data, loss = negative(tokens(seed)), make_loss(variant)
    data["logprobs"].requires_grad_()
    value, _ = whole(loss, data)
    (found,) = torch.autograd.grad(value, data["logprobs"])

    info, counts = info_and_counts(data)
    weights = token_weights(loss.default_agg_mode, info, counts, loss_scale_factor=12.0)
    prepared, expected = prepare(loss, data), torch.zeros_like(found)
    with torch.no_grad():
        for i, weight in enumerate(weights):
            chosen = (data["sequence"] == i) & data["mask"]
            if chosen.any():
                expected[chosen] = weight * FORMULAS[variant](Sequence(data, chosen, prepared))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("variant", set(VARIANTS) - HELD_FIXED)
def test_finite_differences(variant):
    data, loss = tokens(seed=3), make_loss(variant)

    def value(logprobs):
        return whole(loss, data | {"logprobs": logprobs})[0]

    prepared = prepare(loss, data)  # held fixed: its own derivative has no part in the gradient

    class Prepared(type(loss)):
        def prepare(self, whole, generator):
            return prepared

    if loss.prepares:
        loss = Prepared(**{f: getattr(loss, f) for f in loss.__dataclass_fields__})
    torch.autograd.gradcheck(value, (data["logprobs"].requires_grad_(),))


def test_the_group_mean_of_agro_needs_no_derivative():
    """Half the variance, with nothing held fixed, has the same gradient."""
    data, tau = tokens(seed=1), 0.4
    data["logprobs"].requires_grad_()
    x, group = [], []
    for i in range(6):
        chosen = (data["sequence"] == i) & data["mask"]
        if chosen.any():
            x.append(data["rewards"][chosen][0] - tau * (data["logprobs"] - data["old_logprobs"])[chosen].sum())
            group.append(int(data["groups"][chosen][0]))
    x = torch.stack(x)
    halves = [((xs := x[[i for i, g in enumerate(group) if g == k]]) - xs.mean()).square().sum() / 2 for k in (0, 1)]
    expected = sum(halves) / len(x)
    value, _ = whole(make_loss("agro tau"), data)
    assert value.item() == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(
        torch.autograd.grad(value, data["logprobs"])[0], torch.autograd.grad(expected, data["logprobs"])[0]
    )


def test_value_gradient_of_dro_v():
    """∂/∂V of the mean over sequences is −(r − V − τ·log-ratio)/G, and the policy's part has none."""
    data = tokens(seed=2)
    data["state_values"].requires_grad_()
    value, _ = whole(make_loss("dro_v tau"), data)
    (found,) = torch.autograd.grad(value, data["state_values"])
    info, _ = info_and_counts(data)
    for i in range(6):
        chosen = (data["sequence"] == i) & data["mask"]
        if chosen.any():
            lr = (data["logprobs"] - data["old_logprobs"])[chosen].sum()
            expected = -(data["rewards"][chosen][0] - data["state_values"][chosen][0] - 0.4 * lr) / info.num_sequences
            assert found[chosen].sum().item() == pytest.approx(expected.item(), rel=1e-12)


@pytest.mark.parametrize("variant", ["dro", "dro sequence", "importance_sampling", "vanilla", "gpg", "sapo", "cispo"])
def test_on_policy_it_is_the_plain_policy_gradient(variant):
    data, loss = tokens(), make_loss(variant)
    data["old_logprobs"] = data["logprobs"].clone()
    data["logprobs"].requires_grad_()
    (found,) = torch.autograd.grad(whole(loss, data, "token-sum")[0], data["logprobs"])
    torch.testing.assert_close(found, -data["advantages"] * data["mask"])
    assert math.isfinite(found.sum())
