"""What the DRO family is known to converge to, on policies small enough to enumerate, in fp64.

Three prompts have nine completions each: two tokens out of three, the second depending on the first. Losses see every
completion, weighted by the data policy; what is minimised is therefore the exact expectation.
"""

from __future__ import annotations

import math

import pytest
import torch

from megatron_rl.losses import PolicyBatch, build_policy_loss, prepare_policy_loss
from megatron_rl.losses.segments import Segments

PROMPTS, SYMBOLS = 3, 3
COMPLETIONS = SYMBOLS**2
PAIRS = PROMPTS * COMPLETIONS


class Policy:
    """A table of logits: [prompt, first token], [prompt, first token, second token]."""

    def __init__(self, seed, scale=1.0):
        g = torch.Generator().manual_seed(seed)
        self.first = scale * torch.randn(PROMPTS, SYMBOLS, generator=g, dtype=torch.float64)
        self.second = scale * torch.randn(PROMPTS, SYMBOLS, SYMBOLS, generator=g, dtype=torch.float64)

    def copy(self):
        other = Policy(0)
        other.first, other.second = (t.clone().requires_grad_() for t in (self.first, self.second))
        return other

    def token_logprobs(self):
        """[pairs, 2]."""
        second = self.second.log_softmax(-1)
        first = self.first.log_softmax(-1)[:, :, None].expand(second.shape)
        return torch.stack([first, second], dim=-1).view(-1, 2)

    def probabilities(self):
        """[prompt, completion]."""
        return self.token_logprobs().sum(dim=1).exp().detach().view(PROMPTS, -1)


REFERENCE, DATA = Policy(1), Policy(2, scale=0.7)
REWARDS = torch.randn(PROMPTS, COMPLETIONS, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def total_variation(p, q):
    return float((p - q).abs().sum(dim=1).max() / 2)


def boltzmann(tau, rewards=REWARDS):
    return (REFERENCE.probabilities().log() + rewards / tau).softmax(dim=1)


def minimise(parameters, objective, steps=300):
    """To a gradient of 1e-9."""
    optimizer = torch.optim.LBFGS(
        parameters, lr=0.5, max_iter=steps, tolerance_grad=1e-10, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def closure():
        optimizer.zero_grad()
        value = objective()
        value.backward()
        return value

    optimizer.step(closure)


def batch_of(policy, rewards, **more):
    """All completions of all prompts, two tokens each, as one packed micro-batch."""
    count = PAIRS
    segments = Segments(torch.arange(count).repeat_interleave(2), torch.full((count,), 2.0, dtype=torch.float64))
    columns = {"rewards": rewards.flatten().repeat_interleave(2)} | {
        name: value.repeat_interleave(2) for name, value in more.items()
    }
    return PolicyBatch.masked(
        logprobs=policy.token_logprobs().flatten(),
        old_logprobs=REFERENCE.token_logprobs().flatten(),
        mask=torch.ones(2 * count, dtype=torch.bool),
        segments=segments,
        **columns,
    )


def expectation(loss, policy, weights, rewards=REWARDS, **more):
    """E over prompts and completions of the data policy `weights` [prompt, completion]."""
    values = loss(batch_of(policy, rewards, **more)).values
    return (values * weights.flatten().repeat_interleave(2)).sum() / PROMPTS


def train_dro_v(tau, weights, rewards=REWARDS):
    """The joint optimum of policy and value."""
    policy, values = REFERENCE.copy(), torch.zeros(PROMPTS, dtype=torch.float64, requires_grad=True)
    loss = build_policy_loss("dro_v", tau=tau)
    optimizer = torch.optim.Adam([policy.first, policy.second, values], lr=0.05)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 1e-3, total_iters=1500)
    for _ in range(1500):
        optimizer.zero_grad()
        spread = values.repeat_interleave(COMPLETIONS)
        expectation(loss, policy, weights, rewards, state_values=spread).backward()
        optimizer.step()
        schedule.step()
    return policy.probabilities(), values.detach()


@pytest.mark.parametrize("data", ["reference", "another policy", "uniform"])
@pytest.mark.parametrize("tau", [0.5, 2.0])
def test_joint_optimum_of_dro_v(tau, data):
    """π ∝ π_ref·e^{r/τ} and V = τ·log Z, whatever policy of full support the completions came from."""
    weights = {
        "reference": REFERENCE.probabilities(),
        "another policy": DATA.probabilities(),
        "uniform": torch.full((PROMPTS, COMPLETIONS), 1 / COMPLETIONS, dtype=torch.float64),
    }[data]
    policy, values = train_dro_v(tau, weights)
    assert total_variation(policy, boltzmann(tau)) < 0.03
    log_z = tau * (REFERENCE.probabilities() * (REWARDS / tau).exp()).sum(dim=1).log()
    torch.testing.assert_close(values, log_z, rtol=0, atol=0.02)

    def regularised(p):
        """J = E[r] − τ·KL(π ‖ π_ref), averaged over prompts."""
        kl = (p * (p / REFERENCE.probabilities()).log()).sum(dim=1)
        return float(((p * REWARDS).sum(dim=1) - tau * kl).mean())

    start, best = regularised(REFERENCE.probabilities()), regularised(boltzmann(tau))
    assert regularised(policy) - start >= 0.95 * (best - start)


def test_shifting_all_rewards_of_a_prompt_moves_its_value_alone():
    weights, shift = REFERENCE.probabilities(), torch.tensor([[3.0], [-1.0], [0.0]], dtype=torch.float64)
    policy, values = train_dro_v(0.7, weights)
    shifted_policy, shifted_values = train_dro_v(0.7, weights, REWARDS + shift)
    assert total_variation(policy, shifted_policy) < 0.01
    torch.testing.assert_close(shifted_values - values, shift.squeeze(1), rtol=0, atol=0.02)


@pytest.mark.parametrize("tau", [0.5, 2.0])
def test_agro_has_the_same_optimum(tau):
    policy, loss = REFERENCE.copy(), build_policy_loss("agro", tau=tau)
    groups = torch.arange(PROMPTS).repeat_interleave(COMPLETIONS)

    def objective():
        # a group is all nine completions alike: the data policy is uniform
        prepared = prepare_policy_loss(
            loss,
            old_log_prob=REFERENCE.token_logprobs(),
            log_prob=policy.token_logprobs(),
            advantages=None,
            response_mask=torch.ones(PAIRS, 2),
            rewards=REWARDS.flatten(),
            groups=groups,
        )
        batch = batch_of(policy, REWARDS)
        values = loss(PolicyBatch(**{**vars(batch), "prepared": prepared.flatten()})).values
        return values.sum() / PAIRS

    minimise([policy.first, policy.second], objective)
    assert total_variation(policy.probabilities(), boltzmann(tau)) < 0.03


def lambert_w(x):
    """Newton's method for w·e^w = x, x ≥ 0."""
    w = torch.log1p(x)
    for _ in range(50):
        w = w - (w * w.exp() - x) / (w.exp() * (1 + w))
    return w


def train_dro(beta, advantages):
    """Sequence-level DRO on completions of the reference policy, which is the old one too."""
    policy, loss = REFERENCE.copy(), build_policy_loss("dro", beta=beta, level="sequence")
    weights = REFERENCE.probabilities()
    minimise(
        [policy.first, policy.second],
        lambda: expectation(loss, policy, weights, advantages=advantages.flatten()),
    )
    return policy.probabilities()


def lambert_optimum(beta, advantages, reference):
    """ρ = π/μ = (β/λ)·W((λ/β)·e^{A/β}), with λ chosen so that π adds up to 1."""
    low, high = torch.full((PROMPTS, 1), 1e-9, dtype=torch.float64), torch.full((PROMPTS, 1), 1e3, dtype=torch.float64)
    for _ in range(200):
        middle = (low * high).sqrt()
        ratio = beta / middle * lambert_w(middle / beta * (advantages / beta).exp())
        too_much = (reference * ratio).sum(dim=1, keepdim=True) > 1
        low, high = torch.where(too_much, middle, low), torch.where(too_much, high, middle)
    return reference * ratio


@pytest.mark.parametrize("beta", [0.5, 1.5])
def test_a_mean_baseline_leads_elsewhere_than_boltzmann(beta):
    reference = REFERENCE.probabilities()
    advantages = REWARDS - (reference * REWARDS).sum(dim=1, keepdim=True)
    policy = train_dro(beta, advantages)
    lambert = lambert_optimum(beta, advantages, reference)
    assert total_variation(policy, lambert) < 1e-4
    assert total_variation(policy, lambert) < total_variation(policy, boltzmann(beta)) / 10
    # λ = E_μ[A] + β·KL(μ ‖ π)
    kl = (reference * (reference / policy).log()).sum(dim=1, keepdim=True)
    lam = beta * kl
    ratio = beta / lam * lambert_w(lam / beta * (advantages / beta).exp())
    torch.testing.assert_close(policy, reference * ratio, rtol=1e-3, atol=1e-5)


def test_the_soft_baseline_leads_to_boltzmann():
    beta, reference = 0.8, REFERENCE.probabilities()
    soft = beta * (reference * (REWARDS / beta).exp()).sum(dim=1, keepdim=True).log()
    assert total_variation(train_dro(beta, REWARDS - soft), boltzmann(beta)) < 1e-5


def test_only_the_quotient_of_advantage_and_beta_matters():
    advantages = REWARDS - REWARDS.mean(dim=1, keepdim=True) + 0.7
    assert total_variation(train_dro(0.6, advantages), train_dro(6.0, 10 * advantages)) < 1e-6


def test_a_large_beta_moves_the_policy_by_a_over_beta():
    reference = REFERENCE.probabilities()
    advantages = REWARDS - (reference * REWARDS).sum(dim=1, keepdim=True)
    beta = 200.0
    torch.testing.assert_close(train_dro(beta, advantages), reference * (1 + advantages / beta), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("beta", "holds"), [(0.55, True), (0.45, False)])
def test_staying_is_a_minimum_only_for_beta_above_a_constant_negative_advantage(beta, holds):
    """Two tokens, A = −.5 for both: a push away from the old policy comes back, or runs away."""
    loss, old = build_policy_loss("dro", beta=beta), torch.tensor([0.0, 0.0], dtype=torch.float64).log_softmax(0)
    logits = torch.tensor([0.05, 0.0], dtype=torch.float64, requires_grad=True)
    for _ in range(2000):
        batch = PolicyBatch.masked(
            logprobs=logits.log_softmax(0),
            old_logprobs=old,
            advantages=torch.full((2,), -0.5, dtype=torch.float64),
            mask=torch.ones(2, dtype=torch.bool),
        )
        value = (loss(batch).values * old.exp()).sum()
        (gradient,) = torch.autograd.grad(value, logits)
        with torch.no_grad():
            logits -= 0.2 * gradient
    gap = float((logits[0] - logits[1]).detach().abs())
    assert gap < 0.01 if holds else gap > 0.5


def test_the_gradient_of_dro():
    """−(A − β·log-ratio), at token and at sequence level, with the plain policy gradient where nothing has moved."""
    for level, beta in (("token", 0.3), ("sequence", 0.3)):
        logprobs = REFERENCE.token_logprobs() + torch.tensor([[0.2, -0.5]], dtype=torch.float64)
        logprobs = logprobs.flatten().detach().requires_grad_()
        batch = batch_of(REFERENCE, REWARDS, advantages=REWARDS.flatten())
        batch = PolicyBatch(**{**vars(batch), "logprobs": logprobs})
        (found,) = torch.autograd.grad(build_policy_loss("dro", beta=beta, level=level)(batch).values.sum(), logprobs)
        ratio = batch.log_ratio if level == "token" else batch.sequence_sum(batch.log_ratio)
        torch.testing.assert_close(found, -(batch.advantages - beta * ratio).detach())


@pytest.mark.parametrize("target", [0.02, 0.2])
@pytest.mark.parametrize("beta", [0.05, 5.0])
def test_beta_moves_until_the_divergence_is_the_target(target, beta):
    """The closed loop, with beta far too small and far too large at first."""
    policy, loss = REFERENCE.copy(), build_policy_loss("dro", beta=beta, target_kl=target, beta_gain=0.05)
    weights = REFERENCE.probabilities()
    advantages = REWARDS - (weights * REWARDS).sum(dim=1, keepdim=True)
    optimizer = torch.optim.Adam([policy.first, policy.second], lr=0.02)
    measured = []
    for _ in range(600):
        lr = (policy.token_logprobs() - REFERENCE.token_logprobs()).detach()
        k3 = ((lr.exp() - 1 - lr).mean(dim=1) * weights.flatten()).sum() / PROMPTS
        measured.append(float(k3))
        optimizer.zero_grad()
        expectation(loss, policy, weights, advantages=advantages.flatten()).backward()
        optimizer.step()
        loss = loss.after_step({"kl_old_new_k3": measured[-1]})
    assert sum(measured[-50:]) / 50 == pytest.approx(target, rel=0.1)
    assert loss.with_state({}).state() == {}
    again = build_policy_loss("dro", beta=beta, target_kl=target, beta_gain=0.05).with_state(loss.state())
    assert again == loss


def test_beta_stays_within_a_factor_of_a_hundred():
    loss = build_policy_loss("dro", beta=1.0, target_kl=0.1, beta_gain=1.0)
    for _ in range(20):
        loss = loss.after_step({"kl_old_new_k3": 0.0})
    assert loss.beta_now == pytest.approx(0.01)
    for _ in range(40):
        loss = loss.after_step({"kl_old_new_k3": 100.0})
    assert loss.beta_now == pytest.approx(100)
    assert loss.after_step({"kl_old_new_k3": math.nan}) == loss
    assert loss.after_step({"kl_old_new_k3": None}) == loss
