"""Metrics are sums first: a step's number does not depend on how its tokens were grouped."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from megatron_rl.metrics.reduce import reduce_metrics
from megatron_rl.metrics.values import Distribution, Mean, Sum


def test_a_mean_is_over_tokens_not_over_micro_batches():
    one = {"kl": Mean(torch.tensor(1.0), torch.tensor(1))}
    nine = {"kl": Mean(torch.tensor(0.0), torch.tensor(9))}
    assert reduce_metrics([one, nine], None).numbers == {"kl": pytest.approx(0.1)}


def test_nothing_counted_has_no_value():
    parts = [
        {
            "mean": Mean(torch.tensor(0.0), torch.tensor(0)),
            "d": Distribution(torch.full((3,), float("nan"))),
        }
    ]
    found = reduce_metrics(parts, None)
    assert found.numbers == {"mean": None, "d_p1": None, "d_p50": None, "d_p99": None}
    assert found.histograms == {}


def test_sums_and_quantiles():
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    parts = [
        {"s": Sum(v.sum()), "d": Distribution(torch.cat([v, torch.tensor([float("nan")])]))} for v in values.split(170)
    ]
    found = reduce_metrics(parts, None)
    assert found.numbers["s"] == pytest.approx(values.double().sum().item(), rel=1e-5)
    for name, q in (("d_p1", 0.01), ("d_p50", 0.5), ("d_p99", 0.99)):
        assert found.numbers[name] == pytest.approx(np.quantile(values.double().numpy(), q), rel=1e-12)
    assert found.histograms["d"].counts.sum() == 1000


def test_many_small_sums_keep_fp64():
    parts = [{"m": Mean(torch.tensor(0.1), torch.tensor(1))}] * 10_000
    assert reduce_metrics(parts, None).numbers["m"] == pytest.approx(float(np.float32(0.1)), rel=1e-12)
