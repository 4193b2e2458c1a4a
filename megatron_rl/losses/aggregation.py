"""From a loss per token to the loss of a global batch: a weight per token, the same however the batch is cut.

Each mode is a weight that depends only on counts over the whole global batch, known before the first forward
pass. The loss is Σ weight·value over all tokens of all ranks and micro-batches; nothing is ever divided by a
count of one rank's or one micro-batch's tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

AGG_MODES = {
    "token-mean": "mean over all tokens of the global batch (DAPO)",
    "token-sum": "sum over all tokens",
    "seq-mean-token-sum": "mean over sequences of their token sums",
    "seq-mean-token-mean": "mean over sequences of their token means (GRPO)",
    "sample-mean": "another name of seq-mean-token-mean",
    "seq-mean-token-sum-norm": "mean over sequences of their token sums over loss_scale_factor (Dr. GRPO)",
}


def check_agg_mode(mode: str) -> None:
    """Raises ValueError, listing the known modes, if `mode` is not one."""
    if mode not in AGG_MODES:
        raise ValueError(f"unknown loss_agg_mode {mode!r}: known are {', '.join(AGG_MODES)}")


@dataclass(frozen=True)
class GlobalBatchInfo:
    """Counts over the global batch: all data-parallel ranks and micro-batches, context-parallel shards once.

    num_tokens: N, tokens whose mask is set. num_sequences: G, sequences with at least one such token.
    """

    num_tokens: int
    num_sequences: int


def token_weights(
    mode: str,
    info: GlobalBatchInfo,
    sequence_tokens: Tensor,
    loss_scale_factor: float | None = None,
) -> Tensor:
    """The weight of each token in the loss of the global batch.

    Args:
        mode: one of `AGG_MODES`.
        sequence_tokens: the number of unmasked tokens n_i of the whole sequence that each token belongs to,
            any shape; weights have the same shape.
        loss_scale_factor: the constant of seq-mean-token-sum-norm.

    Raises:
        ValueError: an unknown mode, or seq-mean-token-sum-norm without `loss_scale_factor`.
    """
    check_agg_mode(mode)
    tokens, sequences = max(info.num_tokens, 1), max(info.num_sequences, 1)
    ones = sequence_tokens.new_ones(sequence_tokens.shape)
    if mode == "token-mean":
        return ones / tokens
    if mode == "token-sum":
        return ones
    if mode == "seq-mean-token-sum":
        return ones / sequences
    if mode in ("seq-mean-token-mean", "sample-mean"):
        return 1 / (sequences * sequence_tokens.clamp(min=1))
    if loss_scale_factor is None:
        raise ValueError("seq-mean-token-sum-norm needs loss_scale_factor (usually the longest response's length)")
    return ones / (sequences * loss_scale_factor)


def weighted_sum(values: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    """Σ weight·value over unmasked tokens; a scalar, attached to the graph even where every token is masked."""
    return (values * weights).where(mask, 0.0).sum()


def agg_loss(
    loss_mat: Tensor,
    loss_mask: Tensor,
    loss_agg_mode: str,
    dp_size: int = 1,
    batch_num_tokens: int | None = None,
    global_batch_size: int | None = None,
    loss_scale_factor: float | None = None,
    num_micro_batches: int = 1,
) -> Tensor:
    """Aggregate a [B, L] loss matrix in a training loop of one's own.

    The counts of the global batch may be left out only where this call sees all of it: one rank and one
    micro-batch. Otherwise give them; the results of all micro-batches of a step are then to be added.

    Args:
        loss_mat: [B, L], B sequences of at most L tokens. loss_mask: [B, L], non-zero where a token counts.
        dp_size: multiplies the result, because data-parallel wrappers average gradients over ranks.
        batch_num_tokens, global_batch_size: N and G over all ranks and micro-batches, after every rejection.
        loss_scale_factor: the constant of seq-mean-token-sum-norm; by default L, if this call sees all.
        num_micro_batches: how many calls make up a step on this rank.

    Raises:
        ValueError: unknown mode; shapes that differ; a count that the mode needs is missing although the call
            sees only a part of the batch.
    """
    check_agg_mode(loss_agg_mode)
    if loss_mat.shape != loss_mask.shape or loss_mat.dim() != 2:
        raise ValueError(
            f"loss_mat and loss_mask must both be [B, L], got {tuple(loss_mat.shape)} and {tuple(loss_mask.shape)}"
        )
    needed: dict[str, float | None] = {"global_batch_size": global_batch_size}
    if loss_agg_mode == "token-mean":
        needed = {"batch_num_tokens": batch_num_tokens}
    elif loss_agg_mode == "token-sum":
        needed = {}
    elif loss_agg_mode == "seq-mean-token-sum-norm":
        needed["loss_scale_factor"] = loss_scale_factor
    missing = [name for name, value in needed.items() if value is None]
    if missing and (dp_size > 1 or num_micro_batches > 1):
        raise ValueError(
            f"{loss_agg_mode} needs {' and '.join(missing)} over dp_size={dp_size} and {num_micro_batches} "
            "micro-batches: what one of them holds is not the batch"
        )
    mask = loss_mask.bool()
    tokens_of_sequence = mask.sum(dim=1, keepdim=True).to(loss_mat.dtype)
    info = GlobalBatchInfo(
        num_tokens=int(mask.sum()) if batch_num_tokens is None else int(batch_num_tokens),
        num_sequences=int(mask.any(dim=1).sum()) if global_batch_size is None else int(global_batch_size),
    )
    scale = loss_mat.shape[1] if loss_scale_factor is None else loss_scale_factor
    weights = token_weights(loss_agg_mode, info, tokens_of_sequence.expand(loss_mat.shape), scale)
    return weighted_sum(loss_mat, weights, mask) * dp_size
