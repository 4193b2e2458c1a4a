"""Laws that every policy loss obeys."""

from __future__ import annotations

import math

import pytest
import torch

from megatron_rl.losses import AGG_MODES, build_policy_loss
from megatron_rl.metrics.reduce import reduce_metrics
from tests.losses.cases import LENGTHS, PER_TOKEN, VARIANTS, loss_of, make_loss, prepare, tokens, whole

CUTS = [[[i] for i in range(len(LENGTHS))], [[0, 1], [2, 3, 4], [5]], [[3], [5, 0], [1, 4], [2]]]


@pytest.mark.parametrize("mode", AGG_MODES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_value_gradient_and_metrics_do_not_depend_on_the_cut(variant, mode):
    data, loss = tokens(), make_loss(variant)
    everything = [list(range(len(LENGTHS)))]
    results = []
    for cut in (everything, *CUTS):
        data["logprobs"] = data["logprobs"].detach().requires_grad_()
        prepared = prepare(loss, data)
        micro_batches = [
            torch.cat([(data["sequence"] == i).nonzero().squeeze(1) for i in sequences]) for sequences in cut
        ]
        parts = [loss_of(loss, data, rows, mode, prepared=prepared) for rows in micro_batches]
        total = sum(value for value, _ in parts)
        (gradient,) = torch.autograd.grad(total, data["logprobs"])
        results.append((total.item(), gradient, reduce_metrics([m for _, m in parts], None).numbers))
    one, *others = results
    for value, gradient, numbers in others:
        assert value == pytest.approx(one[0], rel=1e-12, abs=1e-15)
        torch.testing.assert_close(gradient, one[1], rtol=1e-12, atol=1e-15)
        # quantiles are kept in fp32
        assert numbers == pytest.approx(one[2], rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("poison", [-math.inf, math.inf, math.nan])
def test_masked_tokens_are_harmless(variant, poison):
    data, loss = tokens(), make_loss(variant)
    clean, _ = whole(loss, data)
    for key in set(PER_TOKEN) - {"groups"}:
        data[key] = data[key].masked_fill(~data["mask"], poison)
    data["logprobs"].requires_grad_()
    data["state_values"].requires_grad_()
    poisoned, metrics = whole(loss, data)
    poisoned.backward()
    assert poisoned.item() == clean.item()
    for key in ("logprobs", "state_values"):
        gradient = data[key].grad
        if gradient is not None:
            assert gradient.isfinite().all()
            assert (gradient[~data["mask"]] == 0).all()
    assert all(v is None or math.isfinite(v) for v in reduce_metrics([metrics], None).numbers.values())


@pytest.mark.parametrize("mode", AGG_MODES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_all_masked_batch_gives_zero(variant, mode):
    data = tokens()
    data["mask"] = torch.zeros_like(data["mask"])
    data["logprobs"].requires_grad_()
    value, metrics = whole(make_loss(variant), data, mode)
    value.backward()
    assert value.item() == 0
    assert (data["logprobs"].grad == 0).all()
    assert all(v is None or math.isfinite(v) for v in reduce_metrics([metrics], None).numbers.values())


@pytest.mark.parametrize("variant", VARIANTS)
def test_log_ratios_of_hundreds_leave_the_loss_finite(variant):
    """A token that the new policy makes 500 nats more or less likely, in fp32."""
    data = {k: v.float() if v.is_floating_point() else v for k, v in tokens().items()}
    rows = data["mask"].nonzero().squeeze(1)
    data["old_logprobs"][rows[0]] = -500.0
    data["logprobs"][rows[1]] = -500.0
    data["logprobs"].requires_grad_()
    value, _ = whole(make_loss(variant), data)
    value.backward()
    assert value.isfinite()
    assert data["logprobs"].grad.isfinite().all()


def test_a_misspelt_loss_gets_a_suggestion():
    with pytest.raises(ValueError, match="did you mean 'vanilla'"):
        build_policy_loss("vanila")
    with pytest.raises(ValueError, match="did you mean 'clip_cov'"):
        build_policy_loss("clip-cov")


def test_several_wrong_options_are_reported_together():
    with pytest.raises(ValueError, match="clip_ratio .*clip_ratio_c"):
        build_policy_loss("vanilla", clip_ratio=True, clip_ratio_c=0.5)
