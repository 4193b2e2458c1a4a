"""Our own rows: a prompt and a completion, as text or as token ids."""

from __future__ import annotations

from megatron_rl.data.formats.fields import (
    COMPLETION_IDS,
    PROMPT_IDS,
    REWARD,
    has_any,
    optional,
    per_token,
    required,
    text_or_messages,
    whole_row,
)
from megatron_rl.data.formats.messages import reply
from megatron_rl.data.formats.plain_row import PlainRow, Row, SourceFormat, TokenIds

PROMPT, COMPLETION = ("prompt",), ("completion", "response", "output")


def detect(row: Row) -> bool:
    # one name is enough: of a row that lacks the other, that is the thing to say
    return has_any(row, *PROMPT_IDS, *PROMPT, *COMPLETION_IDS, *COMPLETION)


def plain_rows(row: Row) -> list[PlainRow]:
    prompt = required(row, *PROMPT_IDS, *PROMPT)
    if prompt.field in PROMPT_IDS:
        prompt, completion = TokenIds(*prompt), TokenIds(*required(row, *COMPLETION_IDS))
    else:
        prompt, completion = text_or_messages(prompt), reply(required(row, *COMPLETION))
    reward = optional(row, *REWARD)
    return [PlainRow(prompt, completion, reward, **per_token(row), **whole_row(row))]


PLAIN = SourceFormat("plain", ("prompt", "completion", "reward"), detect, plain_rows)
