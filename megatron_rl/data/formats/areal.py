"""AReaL's trajectories: lists of the whole sequence, of which entry t belongs to token t."""

from __future__ import annotations

from megatron_rl.data.formats.fields import has, optional, required, whole_row
from megatron_rl.data.formats.full_length import split
from megatron_rl.data.formats.plain_row import Given, PlainRow, Row, SourceFormat


def detect(row: Row) -> bool:
    return has(row, "input_ids", "loss_mask")


def plain_rows(row: Row) -> list[PlainRow]:
    reward = optional(row, "rewards", "reward")
    if isinstance(reward.value, list) and len(reward.value) == 1:
        reward = Given(reward.field, reward.value[0])
    fields = split(required(row, "input_ids"), required(row, "loss_mask"), rollout_logprobs=optional(row, "logprobs"))
    return [PlainRow(**fields, reward=reward, **whole_row(row))]


AREAL = SourceFormat("areal", ("input_ids", "loss_mask", "logprobs", "rewards"), detect, plain_rows)
