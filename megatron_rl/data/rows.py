"""From a row of a data file to a `Sample`, or to what is wrong with the row."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from megatron_rl.data.samples import Sample
from megatron_rl.data.tokenizer import SentencePieceTokenizer

PROMPT, COMPLETION, REWARD = ("prompt",), ("completion", "response", "output"), ("reward", "score", "label")
PROMPT_IDS, COMPLETION_IDS = ("prompt_token_ids",), ("response_token_ids", "completion_token_ids")
_ABSENT = object()


class RowError(ValueError):
    """A row that cannot be used: the field, its value if it is short enough to show, and what is allowed."""

    def __init__(self, field: str, message: str, value: Any = _ABSENT):
        self.field = field
        self.message = message
        shown = "" if value is _ABSENT else repr(value)
        self.value = (shown if len(shown) <= 40 else shown[:37] + "...") or None
        super().__init__(message)


@dataclass(frozen=True)
class RowFormat:
    """What rows are made into samples with.

    seq_length: the longest sample. long_rows: "error", "truncate" (cut the completion) or "drop".
    vocab_size: token ids must be below it. needs_reward, needs_old_logprobs: whether a row without is an error.
    """

    tokenizer: SentencePieceTokenizer | None
    vocab_size: int
    seq_length: int
    long_rows: str
    needs_reward: bool
    needs_old_logprobs: bool

    def for_evaluation(self) -> RowFormat:
        """The same for held-out rows, which need nothing but a prompt and a completion."""
        return replace(self, needs_reward=False, needs_old_logprobs=False)

    def sample(self, line: str) -> tuple[Sample | None, bool]:
        """Parse one line of JSON.

        Returns:
            the sample, None if it is too long and to be dropped; and whether it was cut to fit.

        Raises:
            RowError: the row cannot be used.
        """
        row = _parse(line)
        prompt_key, prompt = _one_of(row, PROMPT_IDS + PROMPT)
        ids_given = prompt_key in PROMPT_IDS
        completion_key, completion = _one_of(row, COMPLETION_IDS if ids_given else COMPLETION)
        if ids_given:
            prompt_ids, completion_ids = self._ids(prompt_key, prompt), self._ids(completion_key, completion)
        else:
            prompt_ids, completion_ids = self._encode(prompt_key, prompt), self._encode(completion_key, completion)
        if not prompt_ids:
            raise RowError(prompt_key, "is empty: the completion's first token needs a token before it")
        if not completion_ids:
            raise RowError(completion_key, "is empty: there is nothing to train on")
        if self.needs_old_logprobs and row.get("old_logprobs") is None:
            raise RowError("old_logprobs", "is missing; give --old-logprobs initial to compute them")
        mask = _loss_mask(row, len(completion_ids) if ids_given else None)
        mask = np.ones(len(completion_ids), dtype=bool) if mask is None else mask
        sample = Sample(
            token_ids=np.array(prompt_ids + completion_ids, dtype=np.int64),
            prompt_length=len(prompt_ids),
            reward=self._reward(row),
            group=prompt if isinstance(prompt, str) else json.dumps(prompt),
            loss_mask=mask,
            old_logprobs=_old_logprobs(row, mask if ids_given else None),
        )
        return self._fit(sample)

    def _ids(self, key: str, ids: Any) -> list[int]:
        if not isinstance(ids, list) or not all(type(i) is int for i in ids):
            raise RowError(key, "must be a list of whole numbers", ids)
        wrong = [i for i in ids if not 0 <= i < self.vocab_size]
        if wrong:
            raise RowError(key, f"has a token id outside the vocabulary of {self.vocab_size}", wrong[0])
        return ids

    def _encode(self, key: str, text: Any) -> list[int]:
        if not isinstance(text, str):
            raise RowError(key, "must be text", text)
        if any(0xD800 <= ord(character) <= 0xDFFF for character in text):
            raise RowError(key, "has half a surrogate pair, which is no character")
        if self.tokenizer is None:
            raise RowError(key, "is text, which needs --tokenizer-model")
        return self.tokenizer.encode_prompt(text) if key in PROMPT else self.tokenizer.encode_completion(text)

    def _reward(self, row: dict[str, Any]) -> float:
        if not self.needs_reward and not any(key in row for key in REWARD):
            return math.nan
        key, reward = _one_of(row, REWARD)
        if not isinstance(reward, (bool, int, float)) or not math.isfinite(reward):
            raise RowError(key, "must be a finite number, true or false", reward)
        return float(reward)

    def _fit(self, sample: Sample) -> tuple[Sample | None, bool]:
        if len(sample) <= self.seq_length:
            return sample, False
        if self.long_rows == "drop":
            return None, False
        if self.long_rows == "error":
            raise RowError(
                "row",
                f"has {len(sample)} tokens, more than seq_length {self.seq_length}; give --truncate or --drop-long",
            )
        if sample.prompt_length >= self.seq_length:
            raise RowError("row", f"its prompt alone fills seq_length {self.seq_length}: {sample.prompt_length} tokens")
        return sample.cut(self.seq_length), True


def _parse(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RowError("row", f"is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise RowError("row", "must be an object", row)
    return row


def _one_of(row: dict[str, Any], keys: tuple[str, ...]) -> tuple[str, Any]:
    present = [key for key in keys if key in row]
    if not present:
        raise RowError(keys[0] if len(keys) == 1 else " or ".join(keys), "is missing")
    if len(present) > 1:
        raise RowError(" and ".join(present), "mean the same: give one of them")
    return present[0], row[present[0]]


def _per_token(row: dict[str, Any], key: str, length: int | None) -> list[Any] | None:
    """The list `key` of a row of token ids, with a number for each response token; None if the row has none."""
    values = row.get(key)
    if values is None:
        return None
    if length is None:
        raise RowError(key, "needs token ids: tokenizing the text again could split it differently")
    if not isinstance(values, list) or not all(isinstance(v, (bool, int, float)) for v in values):
        raise RowError(key, "must be a list of numbers", values)
    if len(values) != length:
        raise RowError(key, f"has {len(values)} values for {length} response tokens")
    return values


def _loss_mask(row: dict[str, Any], length: int | None) -> np.ndarray | None:
    values = _per_token(row, "loss_mask", length)
    if values is None:
        return None
    wrong = [v for v in values if v not in (0, 1)]
    if wrong:
        raise RowError("loss_mask", "must hold 0 and 1 only", wrong[0])
    return np.array(values, dtype=bool)


def _old_logprobs(row: dict[str, Any], mask: np.ndarray | None) -> np.ndarray | None:
    """Log-probabilities of the old policy; those of masked tokens may be anything and are set to 0."""
    values = _per_token(row, "old_logprobs", None if mask is None else len(mask))
    if values is None:
        return None
    wrong = [v for v, counts in zip(values, mask, strict=True) if counts and not -math.inf < v <= 0]
    if wrong:
        raise RowError("old_logprobs", "must be finite and not above 0", wrong[0])
    return np.where(mask, np.array(values, dtype=np.float32), np.float32(0))
