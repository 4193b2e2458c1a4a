"""Normalisation by the counts of the global batch: values that averages of averages get wrong."""

from __future__ import annotations

import pytest
import torch

from megatron_rl.losses import AGG_MODES, agg_loss


def test_token_mean_over_micro_batches():
    micro_batches = [torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[5.0]])]
    parts = [agg_loss(m, torch.ones_like(m), "token-mean", batch_num_tokens=4) for m in micro_batches]
    assert sum(parts).item() == pytest.approx(2.75)


@pytest.mark.parametrize(
    ("mode", "sequences", "expected"),
    [
        ("token-mean", 3, 2.0),
        ("token-sum", 3, 16.0),
        ("seq-mean-token-sum", 3, 16 / 3),
        ("seq-mean-token-sum", 4, 4.0),
        ("seq-mean-token-mean", 3, 7 / 3),
        ("sample-mean", 3, 7 / 3),
        ("seq-mean-token-sum-norm", 3, 16 / 9),
    ],
)
def test_two_ranks_averaged_by_data_parallelism(mode, sequences, expected):
    ranks = [
        (torch.ones(2, 3), torch.ones(2, 3)),
        (torch.full((2, 3), 5.0), torch.tensor([[1, 1, 0], [0, 0, 0]])),
    ]
    counts = {"batch_num_tokens": 8, "global_batch_size": sequences, "loss_scale_factor": 3}
    values = [agg_loss(v, m, mode, dp_size=2, **counts) for v, m in ranks]
    assert (sum(values) / 2).item() == pytest.approx(expected)


def test_a_wholly_masked_sequence_does_not_count():
    values = torch.ones(5, 1)
    mask = torch.tensor([[1], [1], [1], [1], [0]])
    for mode in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum"):
        assert agg_loss(values, mask, mode).item() == pytest.approx(1.0)


def test_a_rejection_mask_is_counted_out():
    mask = torch.tensor([[1, 1, 0, 0, 1, 0, 1, 0]])
    assert agg_loss(torch.ones(1, 8), mask, "token-mean").item() == pytest.approx(1.0)


@pytest.mark.parametrize("mode", AGG_MODES)
def test_everything_masked_is_zero_with_a_gradient_of_zero(mode):
    values = torch.ones(2, 3, requires_grad=True)
    loss = agg_loss(values, torch.zeros(2, 3), mode)
    loss.backward()
    assert loss.item() == 0
    assert (values.grad == 0).all()


@pytest.mark.parametrize("part", [{"dp_size": 2}, {"num_micro_batches": 2}])
@pytest.mark.parametrize("mode", [m for m in AGG_MODES if m != "token-sum"])
def test_missing_counts_are_an_error_where_the_call_sees_a_part(mode, part):
    needed = "batch_num_tokens" if mode == "token-mean" else "global_batch_size"
    with pytest.raises(ValueError, match=needed):
        agg_loss(torch.ones(1, 2), torch.ones(1, 2), mode, **part)


def test_the_constant_of_a_part_is_not_its_own_length():
    counts = {"num_micro_batches": 2, "global_batch_size": 3}
    with pytest.raises(ValueError, match="loss_scale_factor"):
        agg_loss(torch.ones(1, 2), torch.ones(1, 2), "seq-mean-token-sum-norm", **counts)


def test_unknown_mode_lists_the_known():
    with pytest.raises(ValueError, match="seq-mean-token-sum-norm"):
        agg_loss(torch.ones(1, 2), torch.ones(1, 2), "mean")


def test_shapes_must_agree():
    with pytest.raises(ValueError, match=r"\[B, L\]"):
        agg_loss(torch.ones(2, 3), torch.ones(3), "token-mean")
