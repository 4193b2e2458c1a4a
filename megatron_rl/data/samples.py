"""A row of the data set as the trainer sees it: token ids, and what is known about the completion."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Sample:
    """One prompt with one completion, L tokens.

    token_ids: [L] int64, prompt then completion. prompt_length: tokens of the prompt, at least 1, below L.
    reward: NaN where the row has none. prompt: equal for rows of the same prompt.
    loss_mask: [L - prompt_length] bool, the completion's tokens that count.
    old_logprobs: [L - prompt_length] float32 of the completion's tokens, or None.
    """

    token_ids: np.ndarray
    prompt_length: int
    reward: float
    prompt: str
    loss_mask: np.ndarray
    old_logprobs: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def completion_length(self) -> int:
        return len(self.token_ids) - self.prompt_length

    def cut(self, length: int) -> Sample:
        """The first `length` tokens; `length` must leave at least one of the completion's."""
        kept = length - self.prompt_length
        return replace(
            self,
            token_ids=self.token_ids[:length],
            loss_mask=self.loss_mask[:kept],
            old_logprobs=None if self.old_logprobs is None else self.old_logprobs[:kept],
        )
