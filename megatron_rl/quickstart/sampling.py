"""Completions drawn from a model on one process, with their log-probabilities: enough for a small data set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from megatron.core.utils import get_model_config

from megatron_rl.models.packed_sequences import describe_packing


@dataclass(frozen=True)
class Completion:
    """token_ids: what was drawn, the end-of-sequence token included if it came. logprobs: of each, when drawn."""

    token_ids: list[int]
    logprobs: list[float]


@torch.no_grad()
def sample_completions(
    model: torch.nn.Module, prompt_ids: np.ndarray, *, max_tokens: int, eos: int, vocab_size: int, seed: int
) -> list[Completion]:
    """Draw one completion for each prompt at temperature 1.

    Args:
        prompt_ids: [N, P] prompts of one length.
        max_tokens: length at which a completion without end is cut.
    """
    device = next(model.parameters()).device
    generator = torch.Generator(device="cpu").manual_seed(seed)
    tokens = torch.from_numpy(prompt_ids)
    n, prompt_length = tokens.shape
    logprobs = torch.zeros(n, 0)
    for _ in range(max_tokens):
        length = tokens.shape[1]
        positions = torch.arange(length, device=device).repeat(n)
        logits = model(
            input_ids=tokens.reshape(1, -1).to(device),
            position_ids=positions[None],
            attention_mask=None,
            packed_seq_params=describe_packing(get_model_config(model), (length,) * n, positions),
        )
        last = logits.view(n, length, -1)[:, -1, :vocab_size].float().cpu().log_softmax(dim=-1)
        drawn = torch.multinomial(last.exp(), 1, generator=generator)
        tokens = torch.cat([tokens, drawn], dim=1)
        logprobs = torch.cat([logprobs, last.gather(1, drawn)], dim=1)
    completions = []
    for ids, values in zip(tokens[:, prompt_length:].tolist(), logprobs.tolist(), strict=True):
        end = ids.index(eos) + 1 if eos in ids else max_tokens
        completions.append(Completion(ids[:end], values[:end]))
    return completions
