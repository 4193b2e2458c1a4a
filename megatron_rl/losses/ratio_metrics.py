"""How far the policy is from the old one: metrics that every ratio-based loss reports alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megatron_rl.metrics.values import Distribution, Mean, Metric

if TYPE_CHECKING:
    from megatron_rl.losses.batch import PolicyBatch


def ratio_metrics(batch: PolicyBatch) -> dict[str, Metric]:
    """Mean and quantiles of the log-ratio, and two estimates of KL(π_old ‖ π).

    The tokens are samples of π_old, so both estimate the divergence from the old policy to the new one:
    k1 = −lr is unbiased but noisy and may be negative, k3 = e^lr − 1 − lr is unbiased and never negative
    (Schulman, "Approximating KL divergence", 2020). In k3 the exponent is bounded at ±20, so that one token cannot
    make it infinite.
    """
    lr = batch.log_ratio.detach()
    count = batch.mask.sum()
    k3 = lr.clamp(-20, 20).expm1() - lr
    return {
        "log_ratio_mean": Mean(lr.sum(), count),
        "log_ratio": Distribution(lr.where(batch.mask, float("nan"))),
        "kl_old_new_k1": Mean(-lr.sum(), count),
        "kl_old_new_k3": Mean(k3.sum(), count),
    }
