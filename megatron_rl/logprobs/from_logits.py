"""Log-probabilities of tokens, and the entropy, from logits sharded over tensor-parallel ranks.

With x the logits over the temperature, M their maximum and S = Σ exp(x − M), all over the real vocabulary:

    log p(y) = (x_y − M) − log S          H = log S − Σ (x − M)·exp(x − M) / S
    ∂/∂x_j   = g·(1[j = y] − p_j) − g_H·p_j·(log p_j + H)

Neither pass holds a second tensor of the logits' size beside the gradient: the work goes by blocks of rows,
three or four numbers a row are kept, and the softmax is made again in the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_rl.logprobs.vocab_shard import LOWEST, SoftmaxStatistics, VocabShard

_BLOCK_ELEMENTS = 1 << 21  # of fp32 scratch a block: 8 MiB


class TokenLogprobs(NamedTuple):
    """logprobs: [T] of the targets. entropy: [T] of the whole distribution, or None if not asked for."""

    logprobs: Tensor
    entropy: Tensor | None


def logprobs_from_logits(
    logits: Tensor,
    targets: Tensor,
    *,
    tp_group: dist.ProcessGroup | None,
    vocab_size: int | None = None,
    temperature: float = 1.0,
    with_entropy: bool = False,
    ignore_index: int = -100,
    consume_logits: bool = False,
) -> TokenLogprobs:
    """Log-probability of each target token, differentiable in the logits, in fp32 (fp64 for fp64 logits).

    Args:
        logits: [T, V/tp] this rank's columns, any floating dtype; -inf is legal.
        targets: [T] int64 token ids of the whole vocabulary, or `ignore_index`: value 0 and no gradient.
        tp_group: the group over which the vocabulary is sharded, None for whole logits.
        vocab_size: tokens without padding; columns at or past it get no probability. Needed where the vocabulary
            is sharded, so that gathered logits are not taken for a shard; else by default all columns.
        temperature: divides the logits, in the gradient too.
        with_entropy: also return the (differentiable) entropy.
        consume_logits: the backward pass may write the gradient over the logits. The caller hands them over:
            nothing else may read them, and backward runs once.

    Raises:
        ValueError: shapes or dtypes that do not fit; a target outside the vocabulary; a temperature that is
            not positive; logits as wide as the vocabulary on each of several ranks, or no `vocab_size` there.
    """
    if logits.dim() != 2 or targets.shape != logits.shape[:1]:
        raise ValueError(f"logits must be [T, V/tp] and targets [T], got {tuple(logits.shape)}, {tuple(targets.shape)}")
    if targets.dtype != torch.int64:
        raise ValueError(f"targets must be int64, got {targets.dtype}")
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    shard = VocabShard.of(logits.shape[1], vocab_size, tp_group)
    shard.check_targets(targets, ignore_index)
    plan = _Plan(shard, 1.0 / temperature, with_entropy, ignore_index, consume_logits)
    return TokenLogprobs(*_LogprobsFromLogits.apply(logits, targets, plan))


@dataclass(frozen=True)
class _Plan:
    shard: VocabShard
    inverse_temperature: float
    with_entropy: bool
    ignore_index: int
    consume_logits: bool

    def row_blocks(self, rows: int) -> list[slice]:
        if self.shard.valid == 0:
            return []
        step = max(1, _BLOCK_ELEMENTS // self.shard.valid)
        return [slice(i, min(i + step, rows)) for i in range(0, rows, step)]

    def scaled(self, logits: Tensor, rows: slice, dtype: torch.dtype) -> Tensor:
        """A fresh copy of the block's real columns over the temperature."""
        block = logits[rows, : self.shard.valid].to(dtype, copy=True)
        return block if self.inverse_temperature == 1.0 else block.mul_(self.inverse_temperature)


def _statistics(logits: Tensor, local: Tensor, owned: Tensor, plan: _Plan) -> SoftmaxStatistics:
    dtype = torch.promote_types(logits.dtype, torch.float32)
    rows = logits.shape[0]
    maximum = logits.new_full((rows,), float("-inf"), dtype=dtype)
    exp_sum, target = torch.zeros_like(maximum), torch.zeros_like(maximum)
    weighted = torch.zeros_like(maximum) if plan.with_entropy else None
    for block in plan.row_blocks(rows):
        x = plan.scaled(logits, block, dtype)
        maximum[block] = x.amax(dim=1)
        x.sub_(maximum[block].clamp(min=torch.finfo(dtype).min)[:, None])
        target[block] = x.gather(1, local[block, None])[:, 0].where(owned[block], 0.0)
        if weighted is None:
            exp_sum[block] = x.exp_().sum(dim=1)
        else:
            p = x.exp()
            exp_sum[block] = p.sum(dim=1)
            weighted[block] = p.mul_(x.clamp_(min=LOWEST)).sum(dim=1)
    return SoftmaxStatistics(maximum, exp_sum, target, weighted).join(owned, plan.shard.group)


class _LogprobsFromLogits(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits: Tensor, targets: Tensor, plan: _Plan) -> tuple[Tensor, Tensor | None]:
        local, owned = plan.shard.local_targets(targets)
        ignored = targets == plan.ignore_index
        found = _statistics(logits, local, owned, plan)
        exp_sum = found.exp_sum.masked_fill(ignored, 1.0)
        log_sum = exp_sum.log()
        logprobs = (found.target - log_sum).masked_fill(ignored, 0.0)
        entropy = None
        if plan.with_entropy:
            entropy = (log_sum - found.weighted / exp_sum).masked_fill(ignored, 0.0)
        ctx.plan = plan
        ctx.save_for_backward(logits, local, owned, ignored, found.maximum, log_sum, entropy)
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    def backward(ctx, g: Tensor | None, g_entropy: Tensor | None) -> tuple[Tensor | None, None, None]:
        logits, local, owned, ignored, maximum, log_sum, entropy = ctx.saved_tensors
        plan = ctx.plan
        g = torch.zeros_like(log_sum) if g is None else g.masked_fill(ignored, 0.0)
        g = g * plan.inverse_temperature
        at_target = g.where(owned, 0.0)
        if g_entropy is not None:
            g_entropy = g_entropy.masked_fill(ignored, 0.0) * plan.inverse_temperature
        grad = logits if plan.consume_logits else torch.empty_like(logits)
        grad[:, plan.shard.valid :] = 0
        for block in plan.row_blocks(logits.shape[0]):
            # x − M first: M and log S may be large, their difference from x is what has to be exact
            logp = plan.scaled(logits, block, log_sum.dtype).sub_(maximum[block, None]).sub_(log_sum[block, None])
            if g_entropy is None:
                d = logp.exp_().mul_(-g[block, None])
            else:
                p = logp.exp()
                pull = logp.clamp_(min=LOWEST).add_(entropy[block, None]).mul_(g_entropy[block, None])
                d = pull.add_(g[block, None]).mul_(p).neg_()
            d.scatter_add_(1, local[block, None], at_target[block, None])
            grad[block, : plan.shard.valid] = d
        return grad, None, None
