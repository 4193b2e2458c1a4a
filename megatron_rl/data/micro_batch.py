"""A packed micro-batch: some sequences end to end in one row of T tokens, this context-parallel rank's share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from megatron_rl.data.samples import Sample
from megatron_rl.data.zigzag import zigzag_positions

IGNORE_INDEX = -100


@dataclass(frozen=True)
class PackedSequence:
    """A sample on its way into a micro-batch.

    first_slot: the position of its first completion token among all completion tokens of the global batch.
    mask: [completion length] bool, the tokens that count in this step.
    """

    sample: Sample
    first_slot: int
    mask: np.ndarray


@dataclass(frozen=True)
class MicroBatch:
    """T tokens of this rank, S sequences (padding included).

    token_ids, position_ids: [T] int64. labels: [T] int64, the token after each, `IGNORE_INDEX` where it does
    not count. mask: [T] bool, where the label counts. starts: [T] bool, where it is a completion's first token.
    sequence_index: [T] int64 in [0, S). sequence_tokens: [S] float32, counting tokens of each whole sequence.
    slots: [T] int64, the label's place among the completion tokens of the global batch, -1 where it is none.
    lengths: padded length of each whole sequence, before the context-parallel split.
    """

    token_ids: Tensor
    labels: Tensor
    position_ids: Tensor
    mask: Tensor
    starts: Tensor
    sequence_index: Tensor
    sequence_tokens: Tensor
    slots: Tensor
    lengths: tuple[int, ...]

    def pick(self, column: Tensor) -> Tensor:
        """[T], of each label its entry in `column` [C], which has one for each completion token of the batch.

        Where the label is no completion token it is 0.
        """
        if not len(column):
            return column.new_zeros(self.slots.shape)
        return column[self.slots.clamp(min=0)].where(self.slots >= 0, 0)

    def to(self, device: torch.device) -> MicroBatch:
        """The same on `device`; copies to a GPU do not wait."""
        moved = {
            f.name: getattr(self, f.name).to(device, non_blocking=True)
            for f in fields(self)
            if isinstance(getattr(self, f.name), Tensor)
        }
        return replace(self, **moved)


def padded_length(length: int, divisor: int) -> int:
    """`length` rounded up to a multiple of `divisor`."""
    return -(-length // divisor) * divisor


def pack_micro_batch(
    sequences: Sequence[PackedSequence],
    *,
    sequence_divisor: int,
    total_divisor: int,
    cp_size: int,
    cp_rank: int,
) -> MicroBatch:
    """Lay sequences end to end, with labels made before the context-parallel split.

    Each sequence is padded to a multiple of `sequence_divisor` and the last one further, so that the total is
    a multiple of `total_divisor`. Padding follows the sequence it belongs to, where causal attention keeps it
    out of everyone's sight. Without sequences the micro-batch is padding alone, which keeps this rank in step
    with the others.
    """
    lengths = [padded_length(len(s.sample), sequence_divisor) for s in sequences] or [sequence_divisor]
    total = padded_length(sum(lengths), total_divisor)
    lengths[-1] += total - sum(lengths)

    token_ids, position_ids = np.zeros(total, np.int64), np.zeros(total, np.int64)
    labels, slots = np.full(total, IGNORE_INDEX, np.int64), np.full(total, -1, np.int64)
    starts = np.zeros(total, bool)
    sequence_tokens = np.zeros(len(lengths), np.float32)
    start = 0
    for i, length in enumerate(lengths):
        position_ids[start : start + length] = np.arange(length)
        if i < len(sequences):
            sequence = sequences[i]
            sample = sequence.sample
            token_ids[start : start + len(sample)] = sample.token_ids
            # the position before a token is the one that predicts it
            predicting = slice(start + sample.prompt_length - 1, start + len(sample) - 1)
            targets = sample.token_ids[sample.prompt_length :]
            labels[predicting] = np.where(sequence.mask, targets, IGNORE_INDEX)
            slots[predicting] = sequence.first_slot + np.arange(sample.completion_length)
            starts[predicting.start] = True
            sequence_tokens[i] = sequence.mask.sum()
        start += length

    mine = zigzag_positions(lengths, cp_size, cp_rank)
    share = {
        "token_ids": token_ids,
        "labels": labels,
        "position_ids": position_ids,
        "mask": labels != IGNORE_INDEX,
        "starts": starts,
        "sequence_index": np.repeat(np.arange(len(lengths)), lengths),
        "slots": slots,
    }
    return MicroBatch(
        **{name: torch.from_numpy(values[mine]) for name, values in share.items()},
        sequence_tokens=torch.from_numpy(sequence_tokens),
        lengths=tuple(lengths),
    )
