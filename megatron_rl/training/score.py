"""Log-probabilities of completions under the model as it is, and what they say of held-out rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from megatron_rl.data.global_batch import BatchLayout, GlobalBatch
from megatron_rl.data.samples import Sample
from megatron_rl.distributed.parallel import ParallelLayout
from megatron_rl.training.measure import measure


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
    scored = []
    for first in range(0, len(samples), rows_at_once):
        batch = GlobalBatch(samples[first : first + rows_at_once])
        found = measure(model, batch, layout, batch_layout, vocab_size=vocab_size, temperature=temperature)
        scored += batch.split(found["logprobs"].cpu().numpy())
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
