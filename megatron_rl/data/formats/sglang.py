"""SGLang's answers: token ids and log-probabilities of the output in `meta_info`."""

from __future__ import annotations

from megatron_rl.data.formats.fields import (
    PROMPT_IDS,
    REWARD,
    as_list,
    has,
    has_any,
    nested,
    optional,
    per_token,
    prompt_of,
    whole_row,
)
from megatron_rl.data.formats.plain import COMPLETION
from megatron_rl.data.formats.plain_row import Given, PlainRow, Row, SourceFormat, TokenIds
from megatron_rl.data.row_error import RowError

LOGPROBS = "meta_info.output_token_logprobs"


def detect(row: Row) -> bool:
    # rows of other formats may carry notes under this name
    return nested(row, LOGPROBS).value is not None or (has(row, "meta_info") and not has_any(row, *COMPLETION))


def plain_rows(row: Row) -> list[PlainRow]:
    logged = nested(row, LOGPROBS)
    if logged.value is None:
        raise RowError(LOGPROBS, "is missing; the server gives it when asked with return_logprob")
    for i, entry in enumerate(as_list(logged)):
        if not isinstance(entry, list) or len(entry) < 2:
            raise RowError(f"{LOGPROBS}[{i}]", "must be a log-probability, a token id and perhaps its text", entry)
    values = per_token(row) | {"rollout_logprobs": Given(LOGPROBS, [entry[0] for entry in logged.value])}
    completion = TokenIds(LOGPROBS, [entry[1] for entry in logged.value])
    prompt = prompt_of(row, ids=(*PROMPT_IDS, "input_ids"))
    return [PlainRow(prompt, completion, optional(row, *REWARD), **values, **whole_row(row))]


SGLANG = SourceFormat("sglang", ("prompt_token_ids", LOGPROBS, "reward"), detect, plain_rows)
