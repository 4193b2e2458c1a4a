"""slime's samples: all tokens in one list, and lists for the response."""

from __future__ import annotations

from megatron_rl.data.formats.fields import as_list, has, optional, per_token, required, whole_row
from megatron_rl.data.formats.plain_row import Given, PlainRow, Row, SourceFormat, TokenIds
from megatron_rl.data.row_error import RowError


def detect(row: Row) -> bool:
    return has(row, "tokens", "response_length")


def plain_rows(row: Row) -> list[PlainRow]:
    tokens, length = required(row, "tokens"), required(row, "response_length")
    total = len(as_list(tokens, "must be a list of token ids"))
    if type(length.value) is not int or not 0 < length.value < total:
        message = f"must be a whole number from 1 to {total - 1}, one less than there are tokens"
        raise RowError(length.field, message, length.value)
    values = per_token(row) | {"rollout_logprobs": optional(row, "rollout_log_probs", "rollout_logprobs")}
    if row.get("remove_sample"):
        # the row stays, because its reward is part of its group's mean
        values["loss_mask"] = Given("remove_sample", [0] * length.value)
    start = total - length.value
    return [
        PlainRow(
            prompt=TokenIds("tokens", tokens.value[:start]),
            completion=TokenIds("tokens", tokens.value[start:]),
            reward=_reward(row),
            **values,
            **whole_row(row, group=("group_index", "group")),
        )
    ]


def _reward(row: Row) -> Given:
    reward = optional(row, "reward")
    if isinstance(reward.value, dict):
        keys = ", ".join(map(str, reward.value))
        raise RowError("reward", f"is an object with {keys}: write the number that is to be trained on in its place")
    return reward


SLIME = SourceFormat("slime", ("tokens", "response_length", "reward"), detect, plain_rows)
