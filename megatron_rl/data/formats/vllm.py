"""vLLM's completions: token ids, and log-probabilities as numbers or as a table for each token."""

from __future__ import annotations

from typing import Any

from megatron_rl.data.formats.fields import REWARD, as_list, has, optional, per_token, prompt_of, required, whole_row
from megatron_rl.data.formats.plain_row import Given, PlainRow, Row, SourceFormat, TokenIds
from megatron_rl.data.row_error import RowError


def detect(row: Row) -> bool:
    return has(row, "token_ids")


def plain_rows(row: Row) -> list[PlainRow]:
    ids, logprobs = required(row, "token_ids"), optional(row, "logprobs")
    as_list(ids, "must be a list of whole numbers")
    values = per_token(row)
    if logprobs.value is not None:
        entries = as_list(logprobs)
        if len(entries) != len(ids.value):
            raise RowError("logprobs", f"has {len(entries)} values for {len(ids.value)} response tokens")
        numbers = [_of_token(i, *pair) for i, pair in enumerate(zip(entries, ids.value, strict=True))]
        values["rollout_logprobs"] = Given("logprobs", numbers)
    return [PlainRow(prompt_of(row), TokenIds(*ids), optional(row, *REWARD), **values, **whole_row(row))]


def _of_token(i: int, entry: Any, token: Any) -> Any:
    """The log-probability of the drawn token, which stands in the table beside likelier ones."""
    if not isinstance(entry, dict):
        return entry
    drawn = entry.get(str(token))
    if not isinstance(drawn, dict) or "logprob" not in drawn:
        raise RowError(f"logprobs[{i}]", f"has no logprob of the drawn token {token}", entry)
    return drawn["logprob"]


VLLM = SourceFormat("vllm", ("prompt_token_ids", "token_ids", "logprobs", "reward"), detect, plain_rows)
