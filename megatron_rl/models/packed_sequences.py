"""How packed sequences are described to the layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

PLAIN = "packed"
"""`qkv_format` of layers without TransformerEngine: Megatron-Core then leaves the [T, 1, ...] shapes alone."""


@dataclass
class PackedSequences(PackedSeqParams):
    """Megatron's description of packed sequences, and what layers in plain torch need.

    lengths: padded lengths of the whole sequences, on the host, so that nothing waits for the device.
    position_ids: [T/cp] int64, each token's position in its own sequence.
    """

    lengths: tuple[int, ...] = ()
    position_ids: Tensor | None = None


def describe_packing(config: TransformerConfig, lengths: Sequence[int], position_ids: Tensor) -> PackedSequences:
    """Describe sequences packed end to end, in the form that the configured layers read.

    Args:
        lengths: padded lengths of the whole sequences, before the context-parallel split.
        position_ids: [T/cp] int64 on the model's device.
    """
    if config.transformer_impl == "local":
        return PackedSequences(qkv_format=PLAIN, lengths=tuple(lengths), position_ids=position_ids)
    ends = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    ends = ends.to(position_ids.device, non_blocking=True)
    longest = max(lengths)
    return PackedSequences(
        qkv_format="thd",
        cu_seqlens_q=ends,
        cu_seqlens_kv=ends,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
        lengths=tuple(lengths),
        position_ids=position_ids,
    )
