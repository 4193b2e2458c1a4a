"""One optimizer step: a global batch to a loss, gradients, and an update or a reason for none."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist

from megatron_rl.data.global_batch import BatchLayout, GlobalBatch
from megatron_rl.distributed.parallel import ParallelLayout
from megatron_rl.losses import PolicyBatch, PolicyLoss, token_weights, weighted_sum
from megatron_rl.metrics.reduce import StepMetrics, reduce_metrics
from megatron_rl.metrics.values import Sum
from megatron_rl.training.forward import run_schedule, token_logprobs
from megatron_rl.training.optimizer import Optimizer


@dataclass(frozen=True)
class Objective:
    """What a step minimises: a policy loss and how its token values become one number."""

    loss: PolicyLoss
    agg_mode: str
    loss_scale_factor: float | None
    temperature: float
    vocab_size: int


@dataclass(frozen=True)
class StepResult:
    """metrics: of the whole global batch, on every rank. skipped: why nothing was updated, or None."""

    metrics: StepMetrics
    skipped: str | None


def train_step(
    model: list[torch.nn.Module],
    optimizer: Optimizer,
    batch: GlobalBatch,
    objective: Objective,
    layout: ParallelLayout,
    batch_layout: BatchLayout,
) -> StepResult:
    """Run the batch forward and backward, and update the weights.

    A batch without a counting token, and a gradient or loss that is not finite, leave weights, moments and
    learning rate as they are.
    """
    info = batch.info
    if info.num_tokens == 0:
        numbers = {"loss": 0.0, "grad_norm": 0.0, "lr": optimizer.lr}
        return StepResult(StepMetrics(numbers), skipped="every token is masked")

    def loss_of_micro_batch(micro_batch, logits):
        logprobs = token_logprobs(
            micro_batch, logits, layout, vocab_size=objective.vocab_size, temperature=objective.temperature
        )
        tokens = PolicyBatch.masked(
            logprobs=logprobs,
            advantages=micro_batch.advantages,
            mask=micro_batch.mask,
            old_logprobs=micro_batch.old_logprobs if objective.loss.uses_old_logprobs else None,
        )
        token_loss = objective.loss(tokens)
        weights = token_weights(
            objective.agg_mode,
            info,
            micro_batch.sequence_tokens[micro_batch.sequence_index],
            objective.loss_scale_factor,
        )
        total = weighted_sum(token_loss.values, weights, tokens.mask)
        metrics = token_loss.metrics | {"loss": Sum(total.detach().clone())}
        # Megatron divides the gradient by the number of counting tokens: multiply by it first
        return total * info.num_tokens, tokens.mask.sum().int(), metrics

    optimizer.zero_grad(model)
    parts = run_schedule(
        model,
        batch.micro_batches(batch_layout),
        loss_of_micro_batch,
        layout,
        max_tokens=batch_layout.max_tokens,
        forward_only=False,
    )
    metrics = _share(reduce_metrics(parts, layout.dp_cp_group) if layout.is_last_stage else None, layout)
    grad_norm = optimizer.grad_norm()
    loss = metrics.numbers["loss"]
    skipped = None
    if not math.isfinite(grad_norm):
        skipped = f"the gradient norm is {grad_norm}"
    elif not math.isfinite(loss):
        skipped = f"the loss is {loss}"
    else:
        optimizer.step(grad_norm)
    metrics.numbers |= {"grad_norm": grad_norm, "lr": optimizer.lr}
    return StepResult(metrics, skipped)


def _share(metrics: StepMetrics | None, layout: ParallelLayout) -> StepMetrics:
    """The last stage's metrics on all stages."""
    if layout.pp_group.size() == 1:
        return metrics
    holder = [metrics]
    last = dist.get_global_rank(layout.pp_group, layout.pp_group.size() - 1)
    dist.broadcast_object_list(holder, src=last, group=layout.pp_group, device=layout.device)
    return holder[0]
