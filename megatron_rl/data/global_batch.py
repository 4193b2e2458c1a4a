"""A global batch: known whole to every rank, cut the same way by all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from megatron_rl.data.micro_batch import MicroBatch, PackedSequence, pack_micro_batch, padded_length
from megatron_rl.data.packing import pack
from megatron_rl.data.samples import Sample
from megatron_rl.losses import GlobalBatchInfo


@dataclass(frozen=True)
class BatchLayout:
    """How this rank takes part in a batch.

    max_tokens: of a micro-batch, over all context-parallel ranks. sequence_divisor, total_divisor: see
    `pack_micro_batch`. micro_batch_multiple: what the number of micro-batches is a multiple of.
    """

    max_tokens: int
    data_parallel_size: int = 1
    data_parallel_rank: int = 0
    context_parallel_size: int = 1
    context_parallel_rank: int = 0
    sequence_divisor: int = 1
    total_divisor: int = 1
    micro_batch_multiple: int = 1


@dataclass(frozen=True)
class GlobalBatch:
    """G samples of one optimizer step, with C completion tokens among them.

    columns: [C] each, by name: what is known of each completion token, besides what the samples hold.
    rejected: [C] bool, tokens that do not count in this step although their sample's mask says so; or None.
    """

    samples: Sequence[Sample]
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    rejected: np.ndarray | None = None

    @cached_property
    def first_slots(self) -> np.ndarray:
        """[G + 1] int64, where each sample's completion begins among all completion tokens, and their number."""
        return np.cumsum([0, *(sample.completion_length for sample in self.samples)])

    @cached_property
    def sequence_index(self) -> np.ndarray:
        """[C] int64, the sample of each completion token."""
        return np.repeat(np.arange(len(self.samples)), np.diff(self.first_slots))

    @cached_property
    def mask(self) -> np.ndarray:
        """[C] bool, the completion tokens that count."""
        mask = np.concatenate([np.zeros(0, bool), *(sample.loss_mask for sample in self.samples)])
        return mask if self.rejected is None else mask & ~self.rejected

    @cached_property
    def sequence_tokens(self) -> np.ndarray:
        """[G] int64, counting tokens of each sample."""
        return np.bincount(self.sequence_index, weights=self.mask, minlength=len(self.samples)).astype(np.int64)

    @property
    def info(self) -> GlobalBatchInfo:
        """The counts that aggregation divides by."""
        return GlobalBatchInfo(
            num_tokens=int(self.sequence_tokens.sum()), num_sequences=int((self.sequence_tokens > 0).sum())
        )

    @property
    def num_slots(self) -> int:
        """C: completion tokens of all samples, masked ones too."""
        return int(self.first_slots[-1])

    @property
    def num_tokens(self) -> int:
        """Tokens that go through the model: prompts and completions, no padding."""
        return sum(len(sample) for sample in self.samples)

    def split(self, values: np.ndarray) -> list[np.ndarray]:
        """[C] values as one array for each sample."""
        return np.split(values, self.first_slots[1:-1]) if self.samples else []

    def micro_batches(self, layout: BatchLayout) -> list[MicroBatch]:
        """This rank's packed micro-batches; as many on every data-parallel rank."""
        lengths = [padded_length(len(sample), layout.sequence_divisor) for sample in self.samples]
        shares = pack(lengths, layout.max_tokens, layout.data_parallel_size, layout.micro_batch_multiple)
        masks = self.split(self.mask)
        return [
            pack_micro_batch(
                [PackedSequence(self.samples[i], int(self.first_slots[i]), masks[i]) for i in chosen],
                sequence_divisor=layout.sequence_divisor,
                total_divisor=layout.total_divisor,
                cp_size=layout.context_parallel_size,
                cp_rank=layout.context_parallel_rank,
            )
            for chosen in shares[layout.data_parallel_rank]
        ]
