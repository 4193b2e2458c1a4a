"""Several completions of one prompt in one row: a list of objects, or parallel lists."""

from __future__ import annotations

from typing import Any

from megatron_rl.data.formats.fields import (
    COMPLETION_IDS,
    REWARD,
    as_list,
    has,
    optional,
    per_token,
    prompt_of,
    required,
    whole_row,
)
from megatron_rl.data.formats.messages import reply
from megatron_rl.data.formats.plain_row import Given, PlainRow, Row, SourceFormat, TokenIds
from megatron_rl.data.row_error import RowError

TEXT = ("text", "completion", "response", "output")
REWARDS = ("rewards", "scores", "labels")


def detect(row: Row) -> bool:
    return has(row, "responses")


def plain_rows(row: Row) -> list[PlainRow]:
    return completions(row, optional(row, *REWARDS))


def completions(row: Row, rewards: Given, group: tuple[str, ...] = ("group",)) -> list[PlainRow]:
    """The completions of the row's `responses`; `rewards`, if it has a value, is the list parallel to them.

    `group`: names of the field that holds the group.

    Raises:
        RowError: there are none, lists differ in length, or a reward is given twice.
    """
    prompt, responses = prompt_of(row), required(row, "responses")
    entries = as_list(responses, "must be a list of completions")
    if not entries:
        raise RowError("responses", "is empty: there is nothing to train on")
    if rewards.value is None:
        rewards = Given("rewards", [None] * len(entries))
    elif len(as_list(rewards)) != len(entries):
        raise RowError(rewards.field, f"has {len(rewards.value)} values for {len(entries)} responses")
    made = []
    for i, (entry, reward) in enumerate(zip(entries, rewards.value, strict=True)):
        given = Given(f"{rewards.field}[{i}]", reward)
        fields = _completion(f"responses[{i}]", entry, given, ids_wanted=isinstance(prompt, TokenIds))
        made.append(PlainRow(prompt, **fields, **whole_row(row, group)))
    return made


def _completion(field: str, entry: Any, reward: Given, ids_wanted: bool) -> dict[str, Any]:
    """Completion, reward and what is known of its tokens; `reward` is the one of the parallel list."""
    if not isinstance(entry, dict):
        given = Given(field, entry)
        return {"completion": TokenIds(*given) if ids_wanted else reply(given), "reward": reward}
    prefix = f"{field}."
    entry = {prefix + key: value for key, value in entry.items()}
    own = optional(entry, *(prefix + name for name in REWARD))
    if own.value is not None and reward.value is not None:
        raise RowError(f"{own.field} and {reward.field}", "mean the same: give one of them")
    ids = optional(entry, *(prefix + name for name in COMPLETION_IDS))
    in_words = ids.value is None
    completion = reply(required(entry, *(prefix + name for name in TEXT))) if in_words else TokenIds(*ids)
    reward = own if reward.value is None else reward
    return {"completion": completion, "reward": reward, **per_token(entry, prefix)}


NESTED = SourceFormat("nested", ("prompt", "responses", "rewards"), detect, plain_rows)
