"""Core attention in plain torch, for layers without TransformerEngine.

Megatron-Core's own fallback refuses packed sequences and context parallelism. This one takes both, on any
device, on `scaled_dot_product_attention`: packed sequences of equal length go in one call, and no T x T mask
is made.
"""

from __future__ import annotations

import math
from collections import defaultdict
from functools import lru_cache

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.transformer.module import MegatronModule
from torch import Tensor

from megatron_rl.data.zigzag import zigzag_positions
from megatron_rl.models.packed_sequences import PackedSequences


class _GatherSequence(torch.autograd.Function):
    """[T/cp, ...] of each rank to [T, ...] in the order of ranks; gradients are summed over the ranks."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        gathered = x.new_empty((x.size(0) * group.size(), *x.shape[1:]))
        dist.all_gather_into_tensor(gathered, x.contiguous(), group=group)
        return gathered

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        share = grad.new_empty((grad.size(0) // ctx.group.size(), *grad.shape[1:]))
        dist.reduce_scatter_tensor(share, grad.contiguous(), group=ctx.group)
        return share, None


@lru_cache(maxsize=64)
def _natural_order(lengths: tuple[int, ...], cp_size: int) -> Tensor:
    """Where, among the tokens of all ranks in rank order, each token of the packed row stands."""
    owned = np.concatenate([zigzag_positions(lengths, cp_size, rank) for rank in range(cp_size)])
    return torch.from_numpy(np.argsort(owned))


@lru_cache(maxsize=64)
def _by_length(lengths: tuple[int, ...]) -> tuple[tuple[int, Tensor], ...]:
    """For each length the first positions [S, 1] of the sequences that have it."""
    starts = defaultdict(list)
    start = 0
    for length in lengths:
        starts[length].append(start)
        start += length
    return tuple((length, torch.tensor(firsts)[:, None]) for length, firsts in starts.items())


class TorchCoreAttention(MegatronModule):
    """Causal attention over packed sequences, or over a [S, B] batch without packing or context parallelism.

    Takes the constructor arguments that Megatron-Core gives every core attention.
    """

    def __init__(
        self,
        config,
        layer_number: int,
        attn_mask_type,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection=None,
        **unused,
    ):
        super().__init__(config=config)
        self.scale = softmax_scale or 1.0 / math.sqrt(config.kv_channels)
        self.cp_group = getattr(pg_collection, "cp", None) or parallel_state.get_context_parallel_group()

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type=None,
        attention_bias: Tensor | None = None,
        packed_seq_params: PackedSequences | None = None,
    ) -> Tensor:
        """Attend.

        Args:
            query: packed [T/cp, 1, heads, D], or [S, B, heads, D]. key, value: the same with their groups.
            packed_seq_params: lengths of the packed sequences, or None for a [S, B] batch.

        Returns:
            [T/cp, 1, heads·D], or [S, B, heads·D].
        """
        if packed_seq_params is not None:
            q, k, v = (x.squeeze(1) for x in (query, key, value))
            return self._packed(q, k, v, packed_seq_params.lengths)[:, None]
        q, k, v = (x.transpose(0, 1) for x in (query, key, value))
        return self._attend(q, k, v).transpose(0, 1).flatten(2)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """q, k, v [B, S, heads, D]; causal unless there is a mask, True where a query may look."""
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=self.scale, enable_gqa=q.size(1) != k.size(1)
        )
        return out.transpose(1, 2)

    def _packed(self, query: Tensor, key: Tensor, value: Tensor, lengths: tuple[int, ...]) -> Tensor:
        cp = self.cp_group.size()
        if cp > 1:
            order = _natural_order(lengths, cp).to(key.device)
            key = _GatherSequence.apply(key, self.cp_group).index_select(0, order)
            value = _GatherSequence.apply(value, self.cp_group).index_select(0, order)
        parts, places = [], []
        for length, firsts in _by_length(lengths):
            mask = None
            if cp > 1:
                mine = torch.from_numpy(zigzag_positions([length], cp, self.cp_group.rank()))
                mask = (mine[:, None] >= torch.arange(length)[None, :]).to(query.device)
            rows = (firsts + torch.arange(length)).to(query.device)
            own_rows = (firsts // cp + torch.arange(length // cp)).to(query.device)
            parts.append(self._attend(query[own_rows], key[rows], value[rows], mask).flatten(0, 1))
            places.append(own_rows.flatten())
        out = torch.cat(parts)
        if len(parts) > 1:
            out = out.index_select(0, torch.cat(places).argsort())
        return out.flatten(1)
