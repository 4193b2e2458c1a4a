"""What comes after the last hidden state: logits and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class LastStage:
    """The last stage's model and its hidden states for one micro-batch: [T, 1, H], with sequence parallelism a share.

    model: Megatron-Core's GPTModel.
    """

    model: torch.nn.Module
    hidden: Tensor

    def logits(self) -> Tensor:
        """[T, V/tp]."""
        tied = self.model.share_embeddings_and_output_weights
        weight = self.model.shared_embedding_or_output_weight() if tied else None
        logits, _ = self.model.output_layer(self.hidden, weight=weight)
        return logits.squeeze(1)

    def values(self) -> Tensor:
        """[T], by the value head of a policy, or of a value network, which has one in the place of logits."""
        head = getattr(self.model, "value_head", None) or self.model.output_layer
        return head(self.hidden)


def hidden_states(*, hidden_states: Tensor, **_: Any) -> Tensor:
    """An output processor for GPTModel that leaves the hidden states as they are."""
    return hidden_states
