"""A row of the data set as the trainer sees it: token ids, and what is known about the completion."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Sample:
    """One prompt with one completion, L tokens.

    token_ids: [L] int64, prompt then completion. prompt_length: tokens of the prompt, at least 1, below L.
    reward: NaN where the row has none. group: equal for rows whose rewards are compared, those of one prompt.
    baseline_reward: of another completion of the prompt, such as the greedy one (ReMax); NaN where there is none.
    loss_mask: [L - prompt_length] bool, the completion's tokens that count.
    Of the completion's tokens, [L - prompt_length] float32, or None where the row has none:
    old_logprobs: under the policy that the loss compares with. rollout_logprobs: under the sampler.
    ref_logprobs: under the reference. advantages: given by whoever made the row.
    """

    token_ids: np.ndarray
    prompt_length: int
    group: str
    loss_mask: np.ndarray
    reward: float = math.nan
    baseline_reward: float = math.nan
    old_logprobs: np.ndarray | None = None
    rollout_logprobs: np.ndarray | None = None
    ref_logprobs: np.ndarray | None = None
    advantages: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def completion_length(self) -> int:
        return len(self.token_ids) - self.prompt_length

    def cut(self, length: int) -> Sample:
        """The first `length` tokens; `length` must leave at least one of the completion's."""
        kept = length - self.prompt_length
        per_token = ("loss_mask", "old_logprobs", "rollout_logprobs", "ref_logprobs", "advantages")
        values = {name: getattr(self, name) for name in per_token}
        cut = {name: None if value is None else value[:kept] for name, value in values.items()}
        return replace(self, token_ids=self.token_ids[:length], **cut)
