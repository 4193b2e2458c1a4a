"""What a step must know of its whole batch before the first backward pass.

Everything here is about all completion tokens of the global batch, and is computed alike on every rank, so that
nothing depends on how the batch is cut afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from megatron_rl.advantages.returns import gae, token_rewards
from megatron_rl.data.global_batch import GlobalBatch
from megatron_rl.losses import PolicyBatch
from megatron_rl.losses.segments import Segments
from megatron_rl.training.objective import Objective

LOSS_COLUMNS = ("old_logprobs", "advantages", "rewards", "groups", "prepared")


@dataclass(frozen=True)
class PreparedBatch:
    """batch: with rejections in its mask. columns: [C] each, on this rank's device. numbers: metrics of the whole."""

    batch: GlobalBatch
    columns: dict[str, Tensor]
    numbers: dict[str, Tensor]


def prepare_batch(
    batch: GlobalBatch, objective: Objective, measured: Mapping[str, Tensor], device: torch.device, seed: int
) -> PreparedBatch:
    """Reject, weigh, estimate advantages that follow the model, and let the loss look at the whole batch.

    Args:
        measured: `logprobs` and `values` [C] of the models as they stand, where the objective asks for them.
        seed: of what a loss draws at random in this step.
    """
    columns = {name: torch.from_numpy(np.asarray(values)).to(device) for name, values in batch.columns.items()}
    numbers: dict[str, Tensor] = {}
    if objective.corrects:
        proximal = measured["logprobs"] if objective.corrects_current else columns["old_logprobs"]
        batch, correction, numbers = _correct(batch, objective, proximal - columns["rollout_logprobs"], device)
        columns |= correction
    if objective.loss.old_is_sampler:
        columns["old_logprobs"] = columns["rollout_logprobs"]
    elif objective.old_is_current:
        columns.pop("old_logprobs", None)
    if "values" in measured:
        columns["values"] = measured["values"]
    if objective.estimator is not None:
        columns |= _advantages(batch, objective, columns, measured)
    if objective.loss.prepares:
        whole = PolicyBatch.masked(
            logprobs=measured["logprobs"],
            mask=_mask(batch, device),
            segments=_segments(batch, device),
            **{name: columns[name] for name in LOSS_COLUMNS if name in columns},
        )
        columns["prepared"] = objective.loss.prepare(whole, torch.Generator(device=device).manual_seed(seed))
    return PreparedBatch(batch, columns, numbers)


def _mask(batch: GlobalBatch, device: torch.device) -> Tensor:
    return torch.from_numpy(batch.mask).to(device)


def _segments(batch: GlobalBatch, device: torch.device) -> Segments:
    return Segments(
        torch.from_numpy(batch.sequence_index).to(device),
        torch.from_numpy(batch.sequence_tokens).to(device, torch.float32),
    )


def _correct(
    batch: GlobalBatch, objective: Objective, log_ratio: Tensor, device: torch.device
) -> tuple[GlobalBatch, dict[str, Tensor], dict[str, Tensor]]:
    """Rejections first, from the tokens that the data lets count; weights for those that are left."""
    mask, segments = _mask(batch, device), _segments(batch, device)
    log_ratio = log_ratio.where(mask, 0)
    count = mask.sum().clamp(min=1)
    numbers = {
        "rollout_log_ratio_mean": log_ratio.sum() / count,
        "rollout_kl_k3": (log_ratio.clamp(-20, 20).expm1() - log_ratio).sum() / count,
    }
    columns = {}
    if objective.weights is not None:
        weights = columns["rollout_weights"] = objective.weights(log_ratio, mask, segments)
        numbers["rollout_weight_mean"] = weights.sum() / count
        # Kish's effective sample size, as a share of the tokens
        numbers["rollout_effective_share"] = weights.sum().square() / (weights.square().sum() * count).clamp(min=1e-30)
    if objective.rejections:
        rejected = torch.zeros_like(mask)
        for criterion in objective.rejections:
            rejected |= criterion(log_ratio, mask, segments)
        rejected &= mask
        numbers["rollout_rejected_tokens"] = rejected.sum() / count
        before = batch.info.num_sequences
        batch = replace(batch, rejected=rejected.cpu().numpy())
        numbers["rollout_rejected_sequences"] = torch.tensor((before - batch.info.num_sequences) / max(before, 1))
    return batch, columns, numbers


def _advantages(
    batch: GlobalBatch, objective: Objective, columns: Mapping[str, Tensor], measured: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Advantages, and the returns that a value model learns, of estimators that follow the model."""
    device = columns["rewards"].device
    mask, segments = _mask(batch, device), _segments(batch, device)
    if objective.estimator == "gae":
        masks = batch.split(batch.mask)
        rewards = [values[0] for values in batch.split(columns["rewards"].cpu().numpy())]
        charges = batch.split(columns["charges"].cpu().numpy()) if "charges" in columns else [0 * m for m in masks]
        values = batch.split(measured["values"].double().cpu().numpy())
        per_token = token_rewards(rewards, charges, masks)
        found = [
            torch.from_numpy(np.concatenate(kind)).to(device, torch.float32)
            for kind in gae(per_token, values, masks, gamma=objective.gamma, lam=objective.lam)
        ]
        advantages, returns = found
    else:
        returns = columns["rewards"]
        if "charges" in columns:
            returns = returns - segments.spread(segments.sum(columns["charges"].where(mask, 0)))
        if objective.estimator == "value":
            first = torch.from_numpy(batch.first_slots[:-1]).to(device)
            advantages = returns - segments.spread(measured["values"][first])
        else:
            advantages = returns - _self_consistent_baseline(objective, columns, measured, returns, mask, segments)
    if objective.normalize_advantages:
        counting = advantages[mask]
        spread = counting.std(correction=0) if len(counting) else counting.sum()
        advantages = advantages / spread if spread > 0 else advantages
    return {"advantages": advantages, "returns": returns}


def _self_consistent_baseline(objective, columns, measured, returns, mask, segments) -> Tensor:
    """[C], to each token the mean over its group of r − τ·log-ratio: the value that DRO would solve for."""
    old = columns.get("old_logprobs", measured["logprobs"])
    log_ratio = segments.sum((measured["logprobs"] - old).where(mask, 0))
    counts = segments.tokens > 0
    of_sequence = segments.tokens.new_zeros(len(segments.tokens))
    rewards = of_sequence.index_copy(0, segments.index, returns)
    groups = torch.zeros_like(segments.tokens, dtype=torch.int64).index_copy(0, segments.index, columns["groups"])
    residual = (rewards - objective.tau * log_ratio) * counts
    totals = of_sequence.new_zeros(len(of_sequence)).index_add(0, groups, residual)
    members = of_sequence.new_zeros(len(of_sequence)).index_add(0, groups, counts.to(of_sequence.dtype))
    return segments.spread((totals / members.clamp(min=1))[groups])
