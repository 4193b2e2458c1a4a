"""Log-probabilities of completions under the model as it is: a forward pass, with nothing kept for training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist

from megatron_rl.data.global_batch import BatchLayout, GlobalBatch
from megatron_rl.data.samples import Sample
from megatron_rl.distributed.parallel import ParallelLayout
from megatron_rl.training.forward import run_schedule, token_logprobs


@torch.no_grad()
def score_samples(
    model: list[torch.nn.Module],
    samples: Sequence[Sample],
    layout: ParallelLayout,
    batch_layout: BatchLayout,
    *,
    vocab_size: int,
    temperature: float,
    rows_at_once: int,
) -> list[np.ndarray]:
    """The log-probability of every completion token, on every rank.

    Args:
        rows_at_once: samples that are packed and scored together.

    Returns:
        for each sample [completion length] float32, 0 at masked tokens.
    """

    def loss_of_micro_batch(micro_batch, logits):
        logprobs = token_logprobs(micro_batch, logits, layout, vocab_size=vocab_size, temperature=temperature)
        here = micro_batch.slots >= 0
        zero = logprobs.new_zeros(())
        return zero, zero.int(), {"slots": micro_batch.slots[here], "logprobs": logprobs[here]}

    modes = [chunk.training for chunk in model]
    for chunk in model:
        chunk.eval()
    scored = []
    for first in range(0, len(samples), rows_at_once):
        batch = GlobalBatch(samples[first : first + rows_at_once], np.zeros(rows_at_once))
        found = run_schedule(
            model,
            batch.micro_batches(batch_layout),
            loss_of_micro_batch,
            layout,
            max_tokens=batch_layout.max_tokens,
            forward_only=True,
        )
        flat = torch.zeros(batch.num_slots, device=layout.device)
        if layout.holds_results:
            for part in found:
                flat[part["slots"]] = part["logprobs"].float()
        dist.all_reduce(flat)  # every slot was filled by one rank
        ends = np.cumsum([sample.completion_length for sample in batch.samples])
        scored += np.split(flat.cpu().numpy(), ends[:-1])
    for chunk, mode in zip(model, modes, strict=True):
        chunk.train(mode)
    return scored


def evaluate(samples: Sequence[Sample], logprobs: Sequence[np.ndarray]) -> dict[str, float]:
    """What held-out completions say about the model that gave them `logprobs`.

    eval_nll: mean negative log-likelihood of a token. eval_completion_probability: mean probability of a whole
    completion, which is P(correct) where the completions are the right answers.
    """
    tokens = sum(int(sample.loss_mask.sum()) for sample in samples)
    totals = np.array([values.sum(dtype=np.float64) for values in logprobs])
    return {
        "eval_nll": float(-totals.sum() / max(tokens, 1)),
        "eval_completion_probability": float(np.exp(totals).mean()),
    }
