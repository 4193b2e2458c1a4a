"""SkyRL's generator outputs, a row each."""

from __future__ import annotations

from megatron_rl.data.formats.fields import has, optional, per_token, prompt_of, required, whole_row
from megatron_rl.data.formats.plain_row import Given, PlainRow, Row, SourceFormat, TokenIds
from megatron_rl.data.formats.token_sums import summed


def detect(row: Row) -> bool:
    return has(row, "response_ids")


def plain_rows(row: Row) -> list[PlainRow]:
    completion = TokenIds(*required(row, "response_ids"))
    values: dict[str, Given] = per_token(row) | {"loss_mask": optional(row, "loss_masks", "loss_mask")}
    reward = summed(optional(row, "rewards", "reward"), completion)
    return [PlainRow(prompt_of(row), completion, reward, **values, **whole_row(row))]


SKYRL = SourceFormat("skyrl", ("prompt_token_ids", "response_ids", "rewards"), detect, plain_rows)
