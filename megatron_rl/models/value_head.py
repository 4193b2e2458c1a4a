"""A number for each token in the place of, or beside, its logits."""

from __future__ import annotations

import torch
from megatron.core import tensor_parallel
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor


class ValueHead(torch.nn.Module):
    """A linear map from the last hidden state to V, held whole by every tensor-parallel rank; it begins at 0.

    With sequence parallelism each rank computes V for its own tokens and gathers the others', so that H numbers a
    token need not travel.
    """

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self._sequence_parallel = config.sequence_parallel
        self.weight = torch.nn.Parameter(torch.zeros(1, config.hidden_size, dtype=config.params_dtype))
        self.bias = torch.nn.Parameter(torch.zeros(1, dtype=config.params_dtype))
        for parameter in self.parameters():
            # Megatron-Core then adds up the gradients of tensor-parallel ranks, each of its own tokens
            parameter.sequence_parallel = config.sequence_parallel

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, 1, H] (with sequence parallelism this rank's share of T) to [T] in fp32."""
        values = torch.nn.functional.linear(hidden, self.weight, self.bias).float()
        if self._sequence_parallel:
            # every rank goes on with the same values and the same loss: each takes back its own tokens' gradient
            values = tensor_parallel.gather_from_sequence_parallel_region(values, tensor_parallel_output_grad=False)
        return values.flatten()
