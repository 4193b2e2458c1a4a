"""Values worked out by hand, and choices that the whole batch decides."""

from __future__ import annotations

import math

import pytest
import torch

from megatron_rl.losses import PolicyBatch, build_policy_loss, compute_policy_loss, prepare_policy_loss
from megatron_rl.losses.segments import Segments


def one_token(name, ratio, advantage, old=0.0, **options):
    """The loss of one token of which the new policy makes `ratio` times the old probability."""
    batch = PolicyBatch.masked(
        logprobs=torch.tensor([old + math.log(ratio)], dtype=torch.float64),
        old_logprobs=torch.tensor([old], dtype=torch.float64),
        advantages=torch.tensor([advantage], dtype=torch.float64),
        mask=torch.tensor([True]),
        segments=Segments(torch.tensor([0]), torch.tensor([1.0])),
    )
    return build_policy_loss(name, **options)(batch).values.item()


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
    assert one_token("vanilla", ratio, advantage, **options) == pytest.approx(loss, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "ratio", "advantage", "old", "loss"),
    [
        ("importance_sampling", 5.0, -2, 0.0, 10.0),  # no clip
        ("cispo", 2.0, 1, -3.0, -1.2 * (math.log(2) - 3)),
        ("cispo", 0.1, 1, -3.0, -0.1 * (math.log(0.1) - 3)),  # no lower bound
        ("gspo", 1.0002, 2, 0.0, -2.0004),
        ("gspo", 1.1, 2, 0.0, -2 * 1.0004),
        ("gspo", 0.9, -2, 0.0, 2 * 0.9997),
        ("sapo", 1.0, 3, 0.0, -6.0),  # σ(0)·4/τ = 2/τ
        ("sapo", 1.0, -2.1, 0.0, 4.0),  # τ = 1.05
        ("sapo", 2.0, 1, 0.0, -4 / (1 + math.exp(-1))),
        ("geo_mean", 2.0, 1, 0.0, -math.exp(0.4)),
        ("geo_mean", 0.5, 1, 0.0, -0.5),  # the pessimistic side is not clipped
        ("geo_mean", 0.5, -1, 0.0, math.exp(-0.4)),
        # of probability .1 to .24 and .26: inside and outside |π − π_old| ≤ .15
        ("dppo_tv", 2.4, 1, math.log(0.1), -2.4 * math.log(0.24)),
        ("dppo_tv", 2.6, 1, math.log(0.1), 0.0),
        ("dppo_tv", 2.6, -1, math.log(0.1), 2.6 * math.log(0.26)),  # on its way back
        ("dppo_tv", 0.2, -1, math.log(0.1), 0.2 * math.log(0.02)),
        ("dppo_tv", 0.2, -1, math.log(0.5), 0.0),
        ("dppo_tv", 50.0, 1, math.log(1e-4), -20.0 * math.log(5e-3)),  # weight bounded at 20
        # binary KL of .5 to .65 is .0487, to .66 .0550
        ("dppo_kl", 1.30, 1, math.log(0.5), -1.3 * math.log(0.65)),
        ("dppo_kl", 1.32, 1, math.log(0.5), 0.0),
        ("dppo_kl", 1.32, -1, math.log(0.5), 1.32 * math.log(0.66)),
    ],
)
def test_token_formulas(name, ratio, advantage, old, loss):
    assert one_token(name, ratio, advantage, old) == pytest.approx(loss, rel=1e-9, abs=1e-15)


def test_ppo_survives_a_ratio_beyond_fp32():
    batch = PolicyBatch.masked(
        logprobs=torch.tensor([0.0], requires_grad=True),
        old_logprobs=torch.tensor([-500.0]),
        advantages=torch.tensor([-1.0]),
        mask=torch.tensor([True]),
    )
    assert build_policy_loss("vanilla")(batch).values.item() == pytest.approx(3.0)


def padded(count, length, seed=0):
    g = torch.Generator().manual_seed(seed)
    old = -torch.rand(count, length, generator=g, dtype=torch.float64) * 3
    return {
        "old_log_prob": old,
        "log_prob": old + 0.3 * torch.randn(count, length, generator=g, dtype=torch.float64),
        "advantages": torch.randn(count, 1, generator=g, dtype=torch.float64).expand(count, length),
        "response_mask": torch.ones(count, length, dtype=torch.bool),
    }


def rows(given, chosen):
    return {name: value[chosen] for name, value in given.items()}


def test_geo_mean_of_four_sequences_is_that_of_each():
    given, loss = padded(4, 5), build_policy_loss("geo_mean")
    together, _ = compute_policy_loss(loss, **given)
    counts = {"num_micro_batches": 4, "global_batch_size": 4}
    apart = sum(compute_policy_loss(loss, **rows(given, [i]), **counts)[0] for i in range(4))
    assert apart.item() == pytest.approx(together.item(), rel=1e-12)


@pytest.mark.parametrize(("name", "metric"), [("kl_cov", "kl_cov_fraction"), ("clip_cov", "clip_cov_fraction")])
def test_one_token_of_8192_is_chosen_however_the_batch_is_cut(name, metric):
    given, loss = padded(8, 1024), build_policy_loss(name)
    prepared = prepare_policy_loss(loss, **given)
    assert prepared.sum() == 1
    total, metrics = compute_policy_loss(loss, **given, prepared=prepared)
    assert metrics[metric].sum == 1
    counts = {"num_micro_batches": 8, "batch_num_tokens": 8192}
    parts = [compute_policy_loss(loss, **rows(given, [i]), prepared=prepared[[i]], **counts) for i in range(8)]
    assert sum(m[metric].sum for _, m in parts) == 1
    assert sum(value for value, _ in parts).item() == pytest.approx(total.item(), rel=1e-12)


def test_kl_cov_chooses_the_highest_covariance():
    given, loss = padded(4, 10), build_policy_loss("kl_cov", ratio=0.1)
    lp, adv = given["log_prob"], given["advantages"]
    covariance = (lp - lp.mean()) * (adv - adv.mean())
    chosen = prepare_policy_loss(loss, **given) > 0
    assert chosen.sum() == 4
    assert covariance[chosen].min() > covariance[~chosen].max()


def test_clip_cov_draws_among_covariances_inside_its_bounds():
    given = padded(4, 100)
    loss = build_policy_loss("clip_cov", ratio=0.02, lower=0.1, upper=0.8)
    lp, adv = given["log_prob"], given["advantages"]
    covariance = (lp - lp.mean()) * (adv - adv.mean())
    draws = [
        prepare_policy_loss(loss, **given, generator=torch.Generator().manual_seed(seed)) > 0 for seed in (1, 1, 2)
    ]
    for chosen in draws:
        assert chosen.sum() == 8
        assert ((covariance[chosen] > 0.1) & (covariance[chosen] < 0.8)).all()
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


@pytest.mark.parametrize("part", [{"dp_size": 2}, {"num_micro_batches": 2}])
@pytest.mark.parametrize("name", ["kl_cov", "clip_cov"])
def test_a_choice_among_a_part_of_the_batch_is_an_error(name, part):
    with pytest.raises(ValueError, match="prepare_policy_loss"):
        compute_policy_loss(build_policy_loss(name), **padded(2, 3), **part, batch_num_tokens=12)


@pytest.mark.parametrize(
    ("name", "missing"), [("agro", "rewards and groups"), ("vanilla", "advantages"), ("dro_v", "rewards")]
)
def test_what_a_loss_reads_must_be_given(name, missing):
    given = padded(2, 3) | {"advantages": None}
    with pytest.raises(ValueError, match=f"{name} needs {missing}"):
        compute_policy_loss(build_policy_loss(name), **given)


def test_a_loss_over_sequences_needs_them():
    batch = PolicyBatch.masked(
        logprobs=torch.zeros(2), old_logprobs=torch.zeros(2), advantages=torch.ones(2), mask=torch.ones(2).bool()
    )
    with pytest.raises(ValueError, match="segments"):
        build_policy_loss("gspo")(batch)


def test_levels_of_dro_agree_for_equal_log_ratios():
    """A completion of T tokens with one log-ratio: β of the token level is T·β of the sequence level."""
    given = padded(3, 8)
    given["log_prob"] = given["old_log_prob"] + torch.tensor([[0.3], [-0.2], [0.1]], dtype=torch.float64)
    token, _ = compute_policy_loss(build_policy_loss("dro", beta=0.8), **given, loss_agg_mode="seq-mean-token-sum")
    sequence, _ = compute_policy_loss(build_policy_loss("dro", beta=0.1, level="sequence"), **given)
    assert sequence.item() == pytest.approx(token.item(), rel=1e-12)
