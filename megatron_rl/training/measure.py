"""What a model says of the completions of a batch as it stands: a forward pass, the result on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_rl.data.global_batch import BatchLayout, GlobalBatch
from megatron_rl.distributed.parallel import ParallelLayout
from megatron_rl.training.forward import run_schedule, token_logprobs


@torch.no_grad()
def measure(
    model: list[torch.nn.Module],
    batch: GlobalBatch,
    layout: ParallelLayout,
    batch_layout: BatchLayout,
    *,
    vocab_size: int,
    temperature: float,
    logprobs: bool = True,
    values: bool = False,
) -> dict[str, Tensor]:
    """Log-probabilities, and values of the state before each token, of a model that has them.

    Returns:
        `logprobs` and `values` as asked for, [C] each in fp32, on every rank; log-probabilities of masked tokens
        are 0.
    """

    def loss_of_micro_batch(micro_batch, stage):
        found = {}
        if logprobs:
            found["logprobs"] = token_logprobs(
                micro_batch, stage.logits(), layout, vocab_size=vocab_size, temperature=temperature
            ).logprobs
        if values:
            found["values"] = stage.values()
        zero = stage.hidden.new_zeros(())
        return zero, zero.int(), found | {"slots": micro_batch.slots}

    modes = [chunk.training for chunk in model]
    for chunk in model:
        chunk.eval()
    parts = run_schedule(
        model,
        batch.micro_batches(batch_layout),
        loss_of_micro_batch,
        layout,
        max_tokens=batch_layout.max_tokens,
        forward_only=True,
    )
    for chunk, mode in zip(model, modes, strict=True):
        chunk.train(mode)
    wanted = [name for name, asked in (("logprobs", logprobs), ("values", values)) if asked]
    return {name: collect(parts, name, batch, layout) for name in wanted}


def collect(parts: Sequence[dict[str, Any]], name: str, batch: GlobalBatch, layout: ParallelLayout) -> Tensor:
    """Put together what micro-batches of all ranks found for their tokens: [C] in fp32, on every rank.

    Args:
        parts: of each micro-batch, on the last stage: `slots` [T], and `name` [T].
    """
    flat = torch.zeros(batch.num_slots, device=layout.device)
    if layout.holds_results:
        for part in parts:
            here = part["slots"] >= 0
            flat[part["slots"][here]] = part[name][here].float()
    dist.all_reduce(flat)  # every slot was filled by one rank
    return flat
