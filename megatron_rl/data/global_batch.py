"""A global batch: known whole to every rank, cut the same way by all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    """Samples of one optimizer step, with their advantages [G] and old log-probabilities (None if not needed)."""

    samples: Sequence[Sample]
    advantages: np.ndarray
    old_logprobs: Sequence[np.ndarray] | None = None

    @property
    def info(self) -> GlobalBatchInfo:
        """The counts that aggregation divides by."""
        counts = np.array([sample.loss_mask.sum() for sample in self.samples])
        return GlobalBatchInfo(num_tokens=int(counts.sum()), num_sequences=int((counts > 0).sum()))

    @property
    def num_slots(self) -> int:
        """Completion tokens of all samples, masked ones too."""
        return sum(sample.completion_length for sample in self.samples)

    @property
    def num_tokens(self) -> int:
        """Tokens that go through the model: prompts and completions, no padding."""
        return sum(len(sample) for sample in self.samples)

    def micro_batches(self, layout: BatchLayout) -> list[MicroBatch]:
        """This rank's packed micro-batches; as many on every data-parallel rank."""
        lengths = [padded_length(len(sample), layout.sequence_divisor) for sample in self.samples]
        shares = pack(lengths, layout.max_tokens, layout.data_parallel_size, layout.micro_batch_multiple)
        first_slots = np.cumsum([0, *(sample.completion_length for sample in self.samples)])
        return [
            pack_micro_batch(
                [
                    PackedSequence(
                        self.samples[i],
                        float(self.advantages[i]),
                        int(first_slots[i]),
                        None if self.old_logprobs is None else self.old_logprobs[i],
                    )
                    for i in chosen
                ],
                sequence_divisor=layout.sequence_divisor,
                total_divisor=layout.total_divisor,
                cp_size=layout.context_parallel_size,
                cp_rank=layout.context_parallel_rank,
            )
            for chosen in shares[layout.data_parallel_rank]
        ]
