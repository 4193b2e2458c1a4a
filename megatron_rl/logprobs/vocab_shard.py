"""Which columns of the vocabulary this tensor-parallel rank holds, and how shards' statistics are joined."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

LOWEST = -1e4  # a stand-in for -inf where it would meet a factor 0: exp(-1e4) is 0 in every dtype


@dataclass(frozen=True)
class VocabShard:
    """Columns [start, start + valid) of the vocabulary; columns past `valid` are padding.

    group: the tensor-parallel group, None for an unsharded vocabulary.
    vocab_size: the whole vocabulary without padding.
    """

    group: dist.ProcessGroup | None
    start: int
    valid: int
    vocab_size: int

    @classmethod
    def of(cls, width: int, vocab_size: int | None, group: dist.ProcessGroup | None) -> VocabShard:
        """The shard of this rank, for `width` columns a rank.

        Raises:
            ValueError: `vocab_size` does not fit `width`: more tokens than columns, or a shard as wide as the
                whole vocabulary, which is what gathered logits look like; or it is missing, so that they would
                go unnoticed.
        """
        size = 1 if group is None else group.size()
        rank = 0 if group is None else group.rank()
        if size > 1 and vocab_size is None:
            raise ValueError(
                f"vocab_size is needed over {size} tensor-parallel ranks, to tell a shard from whole logits"
            )
        total = width if vocab_size is None else vocab_size
        if total > size * width:
            raise ValueError(f"vocab_size {total} exceeds the {size} x {width} columns of the logits")
        if size > 1 and width >= total:
            raise ValueError(
                f"logits of width {width} hold the whole vocabulary of {total} on each of {size} tensor-parallel "
                "ranks: give one shard per rank, or tp_group=None for gathered logits"
            )
        start = rank * width
        return cls(group=group, start=start, valid=max(0, min(width, total - start)), vocab_size=total)

    def local_targets(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """[T] column of each target in this shard (0 where another rank owns it), and [T] bool whether it is here."""
        local = targets - self.start
        owned = (local >= 0) & (local < self.valid)
        return local.where(owned, 0), owned

    def check_targets(self, targets: Tensor, ignore_index: int) -> None:
        """Refuse targets outside the vocabulary.

        Raises:
            ValueError: on a CPU; on a GPU a device-side assertion, so that the host need not wait.
        """
        fine = ((targets >= 0) & (targets < self.vocab_size)) | (targets == ignore_index)
        if targets.is_cuda:
            torch._assert_async(fine.all())
        elif not bool(fine.all()):
            bad = targets[~fine][0].item()
            raise ValueError(
                f"target {bad} is outside the vocabulary [0, {self.vocab_size}) and is not ignore_index {ignore_index}"
            )


@dataclass
class SoftmaxStatistics:
    """What a row of logits is reduced to; all [T] fp32.

    maximum: the largest logit M, -inf for a shard without a finite logit.
    exp_sum: Σ exp(x − M), 0 for such a shard.
    target: x_target − M, 0 where another rank owns the target.
    weighted: Σ (x − M)·exp(x − M), for the entropy; None if not wanted.
    """

    maximum: Tensor
    exp_sum: Tensor
    target: Tensor
    weighted: Tensor | None

    def join(self, owned: Tensor, group: dist.ProcessGroup | None) -> SoftmaxStatistics:
        """The statistics of the whole vocabulary, from one MAX and one SUM all-reduce over `group`.

        owned: [T] bool, whether the target is in this rank's shard.
        """
        if group is None or group.size() == 1 or self.maximum.numel() == 0:
            return self
        highest = self.maximum.clone()
        dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
        # A shard without a finite logit has maximum -inf and adds nothing: exp(-inf) = 0, and 0·shift must be 0.
        shift = (self.maximum - highest).clamp(min=LOWEST)
        scale = shift.exp()
        parts = [scale * self.exp_sum, (self.target + shift).where(owned, 0.0)]
        if self.weighted is not None:
            parts.append(scale * (self.weighted + shift * self.exp_sum))
        total = torch.stack(parts)
        dist.all_reduce(total, group=group)
        return SoftmaxStatistics(highest, total[0], total[1], total[2] if self.weighted is not None else None)
