"""Value models: one number, a head on the policy, or a network of its own."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_rl.config import RunConfig
from megatron_rl.data.global_batch import BatchLayout, GlobalBatch
from megatron_rl.data.micro_batch import MicroBatch
from megatron_rl.distributed.parallel import ParallelLayout
from megatron_rl.losses import GlobalBatchInfo
from megatron_rl.losses.segments import Segments
from megatron_rl.models.gpt import build_model
from megatron_rl.models.last_stage import LastStage
from megatron_rl.training.checkpoint import load_weights
from megatron_rl.training.forward import LossOfMicroBatch, run_schedule
from megatron_rl.training.measure import measure
from megatron_rl.training.optimizer import Optimizer
from megatron_rl.training.step_metrics import reduce_step_metrics


class Critic(ABC):
    """A value model and how it learns."""

    learns_with_policy: bool = True
    """Whether its gradient comes from the policy's own backward pass."""
    on_policy: bool = False
    """Whether it is a part of the policy, measured in its forward pass."""
    model: list[torch.nn.Module] | None = None
    """Chunks of a network of its own, which has an `optimizer`."""
    optimizer: Optimizer | None = None

    @abstractmethod
    def values(self, micro_batch: MicroBatch, stage: LastStage, columns: Mapping[str, Tensor]) -> Tensor:
        """[T], V of the state before each label, in the policy's pass."""

    def measure(self, batch: GlobalBatch) -> Tensor | None:
        """[C], V before each completion token as it stands; None if the policy's own forward pass tells."""
        return None

    def learn(self, batch: GlobalBatch, info: GlobalBatchInfo, value_loss: LossOfMicroBatch) -> dict[str, float | None]:
        """Update after the policy's backward pass; returns metrics."""
        return {}

    def forget_gradient(self) -> None:
        """Drop what the policy's backward pass left, where the step is not to be taken."""
        return

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps of it besides weights; `load_state` is its inverse."""
        return {}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Go on with what `state` gave."""
        return


class ValueHeadCritic(Critic):
    """A head on the policy: it learns with the policy, by the policy's optimizer."""

    on_policy = True

    def values(self, micro_batch: MicroBatch, stage: LastStage, columns: Mapping[str, Tensor]) -> Tensor:
        return stage.values()


class ScalarCritic(Critic):
    """One number for all states, moved by plain gradient descent, which makes it a running mean of its targets."""

    def __init__(self, layout: ParallelLayout, lr: float):
        self._layout, self._lr = layout, lr
        self.value = torch.zeros((), device=layout.device, requires_grad=True)

    def values(self, micro_batch: MicroBatch, stage: LastStage, columns: Mapping[str, Tensor]) -> Tensor:
        return self.value.expand(micro_batch.labels.shape)

    def measure(self, batch: GlobalBatch) -> Tensor:
        return self.value.detach().expand(batch.num_slots)

    @torch.no_grad()
    def learn(self, batch: GlobalBatch, info: GlobalBatchInfo, value_loss: LossOfMicroBatch) -> dict[str, float]:
        gradient = torch.zeros_like(self.value) if self.value.grad is None else self.value.grad / info.num_tokens
        if self._layout.is_last_stage:
            dist.all_reduce(gradient, group=self._layout.dp_cp_group)
        last = dist.get_global_rank(self._layout.pp_group, self._layout.pp_group.size() - 1)
        dist.broadcast(gradient, src=last, group=self._layout.pp_group)
        self.value -= self._lr * gradient
        self.forget_gradient()
        return {}

    def forget_gradient(self) -> None:
        self.value.grad = None

    def state(self) -> dict[str, float]:
        return {"value": self.value.item()}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, float]) -> None:
        self.value.fill_(state["value"])


class ValueNetworkCritic(Critic):
    """A network of its own, as large as the policy, with a pass and an optimizer of its own.

    It begins with the policy's starting weights and a head of 0.
    """

    learns_with_policy = False

    def __init__(
        self,
        config: RunConfig,
        vocab_size: int,
        train_iters: int,
        layout: ParallelLayout,
        batch_layout: BatchLayout,
        pretrained: Path | None,
    ):
        self._layout, self._batch_layout, self._vocab_size = layout, batch_layout, vocab_size
        self.model = build_model(config, vocab_size, layout.device, role="value network")
        if pretrained is not None:
            load_weights(pretrained, self.model)
        self.optimizer = Optimizer(config, self.model, train_iters, lr=config.advantage.value_lr)

    def values(self, micro_batch: MicroBatch, stage: LastStage, columns: Mapping[str, Tensor]) -> Tensor:
        return micro_batch.pick(columns["values"])

    def measure(self, batch: GlobalBatch) -> Tensor:
        found = measure(
            self.model,
            batch,
            self._layout,
            self._batch_layout,
            vocab_size=self._vocab_size,
            temperature=1.0,
            logprobs=False,
            values=True,
        )
        return found["values"]

    def learn(self, batch: GlobalBatch, info: GlobalBatchInfo, value_loss: LossOfMicroBatch) -> dict[str, float]:
        self.optimizer.zero_grad(self.model)
        parts = run_schedule(
            self.model,
            batch.micro_batches(self._batch_layout),
            value_loss,
            self._layout,
            max_tokens=self._batch_layout.max_tokens,
            forward_only=False,
        )
        grad_norm = self.optimizer.grad_norm()
        if math.isfinite(grad_norm):
            self.optimizer.step(grad_norm)
        found = reduce_step_metrics(parts, self._layout).numbers
        return found | {"value_grad_norm": grad_norm, "value_lr": self.optimizer.lr}


def of_prompt(values: Tensor, micro_batch: MicroBatch, segments: Segments) -> Tensor:
    """[T], to each token V(x) of its prompt, out of V before each token [T]."""
    return segments.spread(segments.sum(values.where(micro_batch.starts, 0)))


def make_critic(
    config: RunConfig,
    vocab_size: int,
    train_iters: int,
    layout: ParallelLayout,
    batch_layout: BatchLayout,
    pretrained: Path | None,
) -> Critic | None:
    """The value model of a run, if it has one; `pretrained` is the checkpoint that the policy's weights came from."""
    kind = config.advantage.value_model
    if kind == "head":
        return ValueHeadCritic()
    if kind == "scalar":
        return ScalarCritic(layout, config.advantage.value_lr or 0.1)
    if kind == "network":
        return ValueNetworkCritic(config, vocab_size, train_iters, layout, batch_layout, pretrained)
    return None
