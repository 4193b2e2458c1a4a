"""Policy losses for a training loop of one's own, with padded [B, L] tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megatron_rl.losses.aggregation import agg_loss
from megatron_rl.losses.batch import PolicyBatch

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from megatron_rl.losses.policy_loss import PolicyLoss
    from megatron_rl.metrics.values import Metric


def compute_policy_loss(
    loss: PolicyLoss,
    *,
    old_log_prob: Tensor | None,
    log_prob: Tensor,
    advantages: Tensor | None,
    response_mask: Tensor,
    loss_agg_mode: str | None = None,
    rollout_is_weights: Tensor | None = None,
    rewards: Tensor | None = None,
    groups: Tensor | None = None,
    state_values: Tensor | None = None,
    prepared: Tensor | None = None,
    dp_size: int = 1,
    batch_num_tokens: int | None = None,
    global_batch_size: int | None = None,
    loss_scale_factor: float | None = None,
    num_micro_batches: int = 1,
) -> tuple[Tensor, dict[str, Metric]]:
    """The aggregated loss and the parts of its metrics.

    Args:
        old_log_prob, log_prob, advantages, response_mask: [B, L], B sequences of at most L tokens. The first and
            the third may be None for a loss that does not read them.
        loss_agg_mode: by default the loss's own, which is its paper's.
        rollout_is_weights: [B, L], multiply each token's loss (for `dro` its penalty too) before aggregation.
        rewards: [B]. groups: [B] int64. state_values: [B], V(x) of each prompt. For losses that read them.
        prepared: [B, L], from `prepare_policy_loss` over the whole global batch. May be left out where this call
            sees all of it: one rank and one micro-batch.
        dp_size, batch_num_tokens, global_batch_size, loss_scale_factor, num_micro_batches: as in `agg_loss`, which
            names the errors.

    Raises:
        ValueError: something that the loss reads is missing, besides what `agg_loss` raises.
    """
    mask = response_mask.bool()
    batch = _flat_batch(loss, log_prob, old_log_prob, advantages, mask, rewards, groups, state_values, prepared)
    if loss.prepares and prepared is None:
        if dp_size > 1 or num_micro_batches > 1:
            raise ValueError(
                f"{loss.name} looks at the whole global batch first: over dp_size={dp_size} and {num_micro_batches} "
                "micro-batches give `prepared`, from prepare_policy_loss"
            )
        prepared = prepare_policy_loss(
            loss,
            old_log_prob=old_log_prob,
            log_prob=log_prob,
            advantages=advantages,
            response_mask=mask,
            rewards=rewards,
            groups=groups,
        )
        batch = _flat_batch(loss, log_prob, old_log_prob, advantages, mask, rewards, groups, state_values, prepared)
    token_loss = loss(batch)
    values = token_loss.values.view(mask.shape)
    if rollout_is_weights is not None:
        values = values * rollout_is_weights.detach().where(mask, 0.0)
    total = agg_loss(
        values,
        mask,
        loss_agg_mode or loss.default_agg_mode,
        dp_size,
        batch_num_tokens,
        global_batch_size,
        loss_scale_factor,
        num_micro_batches,
    )
    return total, token_loss.metrics


def prepare_policy_loss(
    loss: PolicyLoss,
    *,
    old_log_prob: Tensor | None,
    log_prob: Tensor,
    advantages: Tensor | None,
    response_mask: Tensor,
    rewards: Tensor | None = None,
    groups: Tensor | None = None,
    generator: Generator | None = None,
) -> Tensor:
    """What a loss with `prepares` must know of the whole global batch, [B, L], B its sequences on all ranks.

    Args:
        generator: for a loss that draws at random; by default one with seed 0. Every rank needs the same.
    """
    import torch  # imported here, so that losses and their options can be used without it

    mask = response_mask.bool()
    whole = _flat_batch(loss, log_prob.detach(), old_log_prob, advantages, mask, rewards, groups, None, None)
    generator = generator or torch.Generator(device=mask.device).manual_seed(0)
    return loss.prepare(whole, generator).view(mask.shape)


def _flat_batch(
    loss: PolicyLoss,
    log_prob: Tensor,
    old_log_prob: Tensor | None,
    advantages: Tensor | None,
    mask: Tensor,
    rewards: Tensor | None,
    groups: Tensor | None,
    state_values: Tensor | None,
    prepared: Tensor | None,
) -> PolicyBatch:
    from megatron_rl.losses.segments import Segments  # imports torch

    needs = {
        "old_log_prob": (loss.uses_old_logprobs, old_log_prob),
        "advantages": (loss.uses_advantages, advantages),
        "rewards": (loss.uses_rewards, rewards),
        "groups": (loss.uses_groups, groups),
    }
    missing = [name for name, (needed, value) in needs.items() if needed and value is None]
    if missing:
        raise ValueError(f"{loss.name} needs {' and '.join(missing)}")
    per_token = {"old_logprobs": old_log_prob, "advantages": advantages, "prepared": prepared}
    per_row = {"rewards": rewards, "groups": groups, "state_values": state_values}
    columns = {name: tensor.flatten() for name, tensor in per_token.items() if tensor is not None}
    columns |= {name: row[:, None].expand(mask.shape).flatten() for name, row in per_row.items() if row is not None}
    return PolicyBatch.masked(
        logprobs=log_prob.flatten(), mask=mask.flatten(), segments=Segments.of_rows(mask), **columns
    )
