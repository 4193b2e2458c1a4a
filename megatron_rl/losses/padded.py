"""Policy losses for a training loop of one's own, with padded [B, L] tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megatron_rl.losses.aggregation import agg_loss
from megatron_rl.losses.batch import PolicyBatch

if TYPE_CHECKING:
    from torch import Tensor

    from megatron_rl.losses.policy_loss import PolicyLoss
    from megatron_rl.metrics.values import Metric


def compute_policy_loss(
    loss: PolicyLoss,
    *,
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    rollout_is_weights: Tensor | None = None,
    dp_size: int = 1,
    batch_num_tokens: int | None = None,
    global_batch_size: int | None = None,
    loss_scale_factor: float | None = None,
    num_micro_batches: int = 1,
) -> tuple[Tensor, dict[str, Metric]]:
    """The aggregated loss and the parts of its metrics.

    All tensors are [B, L]: B sequences of at most L tokens. `rollout_is_weights` multiply each token's loss
    (for `dro` its penalty too) before aggregation; the counts are as in `agg_loss`, which names the errors.
    """
    mask = response_mask.bool()
    batch = PolicyBatch.masked(
        logprobs=log_prob.flatten(),
        old_logprobs=old_log_prob.flatten(),
        advantages=advantages.flatten(),
        mask=mask.flatten(),
    )
    token_loss = loss(batch)
    values = token_loss.values.view(mask.shape)
    if rollout_is_weights is not None:
        values = values * rollout_is_weights.detach().where(mask, 0.0)
    total = agg_loss(
        values,
        mask,
        loss_agg_mode,
        dp_size,
        batch_num_tokens,
        global_batch_size,
        loss_scale_factor,
        num_micro_batches,
    )
    return total, token_loss.metrics
