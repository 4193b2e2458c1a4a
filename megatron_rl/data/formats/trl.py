"""TRL's unpaired preferences (KTO): a completion and whether it is liked, as text or as messages."""

from __future__ import annotations

from megatron_rl.data.formats.fields import has, has_any, per_token, required, text_or_messages, whole_row
from megatron_rl.data.formats.messages import reply
from megatron_rl.data.formats.plain_row import PlainRow, Row, SourceFormat


def detect(row: Row) -> bool:
    return has(row, "prompt", "completion", "label") and not has_any(row, "reward", "score")


def plain_rows(row: Row) -> list[PlainRow]:
    prompt, completion = text_or_messages(required(row, "prompt")), reply(required(row, "completion"))
    return [PlainRow(prompt, completion, required(row, "label"), **per_token(row), **whole_row(row))]


TRL = SourceFormat("trl", ("prompt", "completion", "label"), detect, plain_rows)
