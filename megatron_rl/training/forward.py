"""Micro-batches through the model, by Megatron's forward-backward schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.utils import get_model_config
from torch import Tensor

from megatron_rl.data.micro_batch import IGNORE_INDEX, MicroBatch
from megatron_rl.distributed.parallel import ParallelLayout
from megatron_rl.logprobs import TokenLogprobs, logprobs_from_logits
from megatron_rl.models.last_stage import LastStage, hidden_states
from megatron_rl.models.packed_sequences import describe_packing

LossOfMicroBatch = Callable[[MicroBatch, LastStage], tuple[Tensor, Tensor, dict[str, Any]]]
"""(micro-batch, its last hidden states) -> (Σ loss of its tokens, how many count, what to hand back)."""


def run_schedule(
    model: list[torch.nn.Module],
    micro_batches: Sequence[MicroBatch],
    loss_of_micro_batch: LossOfMicroBatch,
    layout: ParallelLayout,
    *,
    max_tokens: int,
    forward_only: bool,
) -> list[dict[str, Any]]:
    """Run all micro-batches of a step through the pipeline.

    Gradients are summed over micro-batches and ranks and divided by the number of counting tokens of all of
    them, which is Megatron-Core's contract under `calculate_per_token_loss`.

    Returns:
        what `loss_of_micro_batch` handed back, one for each micro-batch, on the last stage; elsewhere nothing.
    """

    config = get_model_config(model[0])

    def forward_step(iterator, chunk):
        micro_batch = next(iterator).to(layout.device)
        output = chunk(
            input_ids=micro_batch.token_ids[None],
            position_ids=micro_batch.position_ids[None],
            attention_mask=None,
            packed_seq_params=describe_packing(config, micro_batch.lengths, micro_batch.position_ids),
            output_processor=hidden_states,
        )
        return output, partial(_loss, micro_batch, chunk.module)

    def _loss(micro_batch, gpt_model, hidden):
        return loss_of_micro_batch(micro_batch, LastStage(gpt_model, hidden))

    iterators = [iter(micro_batches) for _ in model]
    return get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=iterators if len(model) > 1 else iterators[0],
        model=model,
        num_microbatches=len(micro_batches),
        seq_length=max_tokens,
        micro_batch_size=1,
        forward_only=forward_only,
    )


def token_logprobs(
    micro_batch: MicroBatch,
    logits: Tensor,
    layout: ParallelLayout,
    *,
    vocab_size: int,
    temperature: float,
    with_entropy: bool = False,
) -> TokenLogprobs:
    """[T] log-probability of each label, 0 where it does not count; the logits are used up."""
    return logprobs_from_logits(
        logits,
        micro_batch.labels,
        tp_group=layout.tp_group if layout.tp_group.size() > 1 else None,
        vocab_size=vocab_size,
        temperature=temperature,
        ignore_index=IGNORE_INDEX,
        with_entropy=with_entropy,
        consume_logits=True,
    )
