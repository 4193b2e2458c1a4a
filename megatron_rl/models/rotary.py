"""Rotary positions of packed tokens, by each token's own position."""

from __future__ import annotations

import torch
from torch import Tensor

from megatron_rl.models.packed_sequences import PackedSequences


class PackedRotaryEmbedding(torch.nn.Module):
    """Stands where GPTModel keeps its rotary embedding, for layers without TransformerEngine.

    Megatron-Core's own goes through packed sequences one by one in Python. Here the angles of all T tokens are
    one product, whatever was packed and however context-parallel ranks share it. Angles are those of RoFormer
    (arXiv 2104.09864, eq. 15): position · base^(-2i/D) for i < D/2, laid out twice, as Megatron-Core rotates
    halves.
    """

    def __init__(self, head_width: int, base: int):
        super().__init__()
        exponents = torch.arange(0, head_width, 2, dtype=torch.float32) / head_width
        self.register_buffer("frequencies", base**-exponents, persistent=False)

    def get_rotary_seq_len(
        self, inference_context, decoder, decoder_input, config, packed_seq_params: PackedSequences
    ) -> PackedSequences:
        """What GPTModel hands to `forward` as the length: here the packing itself."""
        return packed_seq_params

    def forward(self, packing: PackedSequences, packed_seq: bool = False, cp_group=None) -> Tensor:
        """[T/cp, 1, 1, D] angles in fp32."""
        half = packing.position_ids[:, None].float() * self.frequencies[None, :]
        return torch.cat([half, half], dim=1)[:, None, None, :]
