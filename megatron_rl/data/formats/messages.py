"""Conversations: the last assistant turn is the completion, and the turns before it are the prompt."""

from __future__ import annotations

from megatron_rl.data.formats.fields import (
    COMPLETION_IDS,
    PROMPT_IDS,
    REWARD,
    as_list,
    has,
    nested,
    optional,
    per_token,
    required,
    whole_row,
)
from megatron_rl.data.formats.plain_row import Given, Messages, PlainRow, Row, SourceFormat, Text, TokenIds
from megatron_rl.data.row_error import RowError


def detect(row: Row) -> bool:
    return has(row, "messages")


def plain_rows(row: Row) -> list[PlainRow]:
    turns = checked_turns(required(row, "messages"))
    replies = [i for i, turn in enumerate(turns) if turn["role"] == "assistant"]
    if not replies:
        raise RowError("messages", "has no assistant turn: there is nothing to train on")
    prompt, completion = Messages("messages", turns[: replies[-1]]), _text(turns, replies[-1], "messages")
    values = per_token(row)
    if has(row, *PROMPT_IDS):
        prompt = TokenIds(*required(row, *PROMPT_IDS))
    logged = nested(row, "logprobs.content")
    ids = optional(row, "token_ids", *COMPLETION_IDS)
    if logged.value is not None:
        entries = as_list(logged, "must be a list of objects with a logprob each")
        numbers = [entry.get("logprob") if isinstance(entry, dict) else None for entry in entries]
        values["rollout_logprobs"] = Given("logprobs.content[].logprob", numbers)
        if ids.value is None and all(isinstance(entry, dict) and "token_id" in entry for entry in entries):
            ids = Given("logprobs.content[].token_id", [entry["token_id"] for entry in entries])
    if ids.value is not None:
        completion = TokenIds(*ids)
    return [PlainRow(prompt, completion, optional(row, *REWARD), **values, **whole_row(row))]


def checked_turns(given: Given) -> list[Row]:
    """The turns of a conversation. Raises `RowError` unless each has its role and its content in words."""
    turns = as_list(given, "must be text or a list of messages")
    for i, turn in enumerate(turns):
        if not isinstance(turn, dict):
            raise RowError(f"{given.field}[{i}]", "must be a message with role and content", turn)
        for key in ("role", "content"):
            if not isinstance(turn.get(key), str):
                raise RowError(f"{given.field}[{i}].{key}", "must be text", turn.get(key))
    return turns


def reply(given: Given) -> Text:
    """A completion in words: text, or a list of one assistant message. Raises `RowError` for other lists."""
    if not isinstance(given.value, list):
        return Text(*given)
    turns = checked_turns(given)
    if [turn["role"] for turn in turns] != ["assistant"]:
        raise RowError(given.field, "must hold one assistant message; give a longer conversation as 'messages'")
    return _text(turns, 0, given.field)


def _text(turns: list[Row], i: int, field: str) -> Text:
    return Text(f"{field}[{i}].content", turns[i]["content"])


MESSAGES = SourceFormat("messages", ("messages", "reward"), detect, plain_rows)
