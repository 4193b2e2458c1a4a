"""One optimizer step: a global batch to a loss, gradients, and an update or a reason for none."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from megatron_rl.data.global_batch import BatchLayout, GlobalBatch
from megatron_rl.data.micro_batch import MicroBatch
from megatron_rl.distributed.parallel import ParallelLayout
from megatron_rl.losses import PolicyBatch, kl_estimate, token_weights, weighted_sum
from megatron_rl.losses.segments import Segments
from megatron_rl.metrics.reduce import StepMetrics
from megatron_rl.metrics.values import Mean, Metric, Sum
from megatron_rl.training.critic import Critic, of_prompt
from megatron_rl.training.forward import run_schedule, token_logprobs
from megatron_rl.training.measure import collect, measure
from megatron_rl.training.objective import Objective
from megatron_rl.training.optimizer import Optimizer
from megatron_rl.training.prepare import LOSS_COLUMNS, PreparedBatch, prepare_batch
from megatron_rl.training.step_metrics import reduce_step_metrics


@dataclass(frozen=True)
class StepResult:
    """metrics: of the whole global batch, on every rank. skipped: why nothing was updated, or None.

    batch: as it was trained on, with rejections in its mask.
    """

    metrics: StepMetrics
    skipped: str | None
    batch: GlobalBatch


def train_step(
    model: list[torch.nn.Module],
    optimizer: Optimizer,
    batch: GlobalBatch,
    objective: Objective,
    layout: ParallelLayout,
    batch_layout: BatchLayout,
    *,
    critic: Critic | None = None,
    seed: int = 0,
) -> StepResult:
    """Run the batch forward and backward, and update the weights.

    A batch without a counting token, and a gradient or loss that is not finite, leave weights, moments and
    learning rate as they are.

    Args:
        critic: the value model, where the objective has a use for one.
        seed: of what a loss draws at random in this step.
    """
    prepared = prepare_batch(
        batch, objective, _measure(model, batch, objective, layout, batch_layout, critic), layout.device, seed
    )
    numbers = {name: float(value) for name, value in prepared.numbers.items()}
    info = prepared.batch.info
    if info.num_tokens == 0:
        numbers |= {"loss": 0.0, "grad_norm": 0.0, "lr": optimizer.lr}
        return StepResult(StepMetrics(numbers), "every token is masked", prepared.batch)
    total = _Total(objective, prepared, layout, critic)

    optimizer.zero_grad(model)
    parts = run_schedule(
        model,
        prepared.batch.micro_batches(batch_layout),
        total.in_policy_pass,
        layout,
        max_tokens=batch_layout.max_tokens,
        forward_only=False,
    )
    metrics = reduce_step_metrics(parts, layout)
    grad_norm = optimizer.grad_norm()
    loss = metrics.numbers["loss"]
    skipped = None
    if not math.isfinite(grad_norm):
        skipped = f"the gradient norm is {grad_norm}"
    elif not math.isfinite(loss):
        skipped = f"the loss is {loss}"
    if skipped is None:
        optimizer.step(grad_norm)
        if critic is not None:
            if not critic.learns_with_policy:
                total.logprobs = collect(parts, "logprobs", prepared.batch, layout)
            numbers |= critic.learn(prepared.batch, info, total.in_value_pass)
    elif critic is not None:
        critic.forget_gradient()
    metrics.numbers |= numbers | {"grad_norm": grad_norm, "lr": optimizer.lr}
    return StepResult(metrics, skipped, prepared.batch)


def _measure(
    model: list[torch.nn.Module],
    batch: GlobalBatch,
    objective: Objective,
    layout: ParallelLayout,
    batch_layout: BatchLayout,
    critic: Critic | None,
) -> dict[str, Tensor]:
    """What the models say of the batch as they stand, as far as the objective asks for it."""
    on_policy = critic is not None and critic.on_policy and objective.measures_values
    found = {}
    if objective.measures_logprobs or on_policy:
        found = measure(
            model,
            batch,
            layout,
            batch_layout,
            vocab_size=objective.vocab_size,
            temperature=objective.temperature,
            logprobs=objective.measures_logprobs,
            values=on_policy,
        )
    if critic is not None and not critic.on_policy:
        found["values"] = critic.measure(batch)
    return found


class _Total:
    """The objective of one micro-batch: weight × (policy loss + terms beside it), summed over its tokens."""

    def __init__(self, objective: Objective, prepared: PreparedBatch, layout: ParallelLayout, critic: Critic | None):
        self._objective, self._layout, self._critic = objective, layout, critic
        self._info, self._columns = prepared.batch.info, prepared.columns
        self.logprobs: Tensor | None = None

    def in_policy_pass(self, micro_batch: MicroBatch, stage) -> tuple[Tensor, Tensor, dict]:
        objective = self._objective
        logprobs, entropy = token_logprobs(
            micro_batch,
            stage.logits(),
            self._layout,
            vocab_size=objective.vocab_size,
            temperature=objective.temperature,
            with_entropy=objective.entropy_coef > 0,
        )
        state = None if self._critic is None else self._critic.values(micro_batch, stage, self._columns)
        values, metrics = self._policy_loss(micro_batch, logprobs, state)
        values = values + self._beside(micro_batch, logprobs, entropy, metrics)
        total = self._aggregate(micro_batch, values, self._objective.agg_mode)
        if state is not None and self._critic.learns_with_policy:
            total = total + self._value_loss(micro_batch, state, metrics)
        metrics["loss"] = Sum(total.detach().clone())
        # Megatron divides the gradient by the number of counting tokens: multiply by it first
        handed_back = {"metrics": metrics, "slots": micro_batch.slots, "logprobs": logprobs.detach()}
        return total * self._info.num_tokens, micro_batch.mask.sum().int(), handed_back

    def in_value_pass(self, micro_batch: MicroBatch, stage) -> tuple[Tensor, Tensor, dict]:
        """The same loss for a value network, with the policy's log-probabilities held fixed."""
        state, metrics = stage.values(), {}
        if self._objective.loss.uses_state_values:
            values, _ = self._policy_loss(micro_batch, micro_batch.pick(self.logprobs), state)
            total = self._aggregate(micro_batch, values, self._objective.agg_mode)
        else:
            total = self._value_loss(micro_batch, state, metrics)
        return total * self._info.num_tokens, micro_batch.mask.sum().int(), {"metrics": metrics}

    def _policy_loss(
        self, micro_batch: MicroBatch, logprobs: Tensor, state: Tensor | None
    ) -> tuple[Tensor, dict[str, Metric]]:
        loss, segments = self._objective.loss, self._segments(micro_batch)
        columns = {name: micro_batch.pick(self._columns[name]) for name in LOSS_COLUMNS if name in self._columns}
        if loss.uses_state_values:
            columns["state_values"] = of_prompt(state, micro_batch, segments)
        found = loss(PolicyBatch.masked(logprobs=logprobs, mask=micro_batch.mask, segments=segments, **columns))
        values = found.values
        if "rollout_weights" in self._columns and loss.takes_rollout_weights:
            values = values * micro_batch.pick(self._columns["rollout_weights"])
        return values, dict(found.metrics)

    def _value_loss(self, micro_batch: MicroBatch, state: Tensor, metrics: dict[str, Metric]) -> Tensor:
        """Half the squared error of values that estimate advantages: the mean over tokens, or over prompts.

        What the policy's losses are averaged over plays no part: a value has a meaning of its own.
        """
        if self._objective.loss.uses_state_values:
            return state.new_zeros(())  # the loss has it already
        returns, mask = micro_batch.pick(self._columns["returns"]), micro_batch.mask
        share, mode = mask.to(state.dtype), "token-mean"
        if not self._objective.value_per_token:
            segments = self._segments(micro_batch)
            state, mode = of_prompt(state, micro_batch, segments), "seq-mean-token-sum"
            share = share / segments.spread(segments.tokens).clamp(min=1)
        error = ((returns - state).where(mask, 0).square() / 2) * share
        metrics["value_loss"] = Mean(error.detach().sum(), share.sum())
        metrics["state_value"] = Mean((state.detach() * share).sum(), share.sum())
        return self._objective.value_loss_coef * self._aggregate(micro_batch, error, mode)

    def _beside(
        self, micro_batch: MicroBatch, logprobs: Tensor, entropy: Tensor | None, metrics: dict[str, Metric]
    ) -> Tensor:
        """[T], the entropy bonus and the divergence from the reference policy."""
        objective, mask = self._objective, micro_batch.mask
        count, values = mask.sum(), torch.zeros_like(logprobs)
        if objective.entropy_coef:
            entropy = entropy.where(mask, 0)
            metrics["entropy"] = Mean(entropy.detach().sum(), count)
            values = values - objective.entropy_coef * entropy
        if objective.kl_coef:
            reference = micro_batch.pick(self._columns["ref_logprobs"]).where(mask, 0)
            divergence = kl_estimate(logprobs.where(mask, 0), reference, objective.kl_kind)
            metrics["kl_ref"] = Mean(divergence.detach().sum(), count)
            values = values + objective.kl_coef * divergence
        return values

    def _aggregate(self, micro_batch: MicroBatch, values: Tensor, mode: str) -> Tensor:
        weights = token_weights(
            mode,
            self._info,
            micro_batch.sequence_tokens[micro_batch.sequence_index],
            self._objective.loss_scale_factor,
        )
        return weighted_sum(values, weights, micro_batch.mask)

    def _segments(self, micro_batch: MicroBatch) -> Segments:
        return Segments(micro_batch.sequence_index, micro_batch.sequence_tokens, self._layout.cp_group)
