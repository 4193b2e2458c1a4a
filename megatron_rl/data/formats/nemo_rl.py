"""NeMo-RL's batches, a row each: lists of the whole sequence, of which entry t belongs to token t."""

from __future__ import annotations

from dataclasses import replace

from megatron_rl.data.formats.fields import has, has_any, optional, required, whole_row
from megatron_rl.data.formats.full_length import split
from megatron_rl.data.formats.plain_row import Given, PlainRow, Row, SourceFormat
from megatron_rl.data.row_error import RowError


def detect(row: Row) -> bool:
    return has(row, "input_ids") and has_any(row, "token_mask", "generation_logprobs", "sample_mask")


def plain_rows(row: Row) -> list[PlainRow]:
    fields = split(
        required(row, "input_ids"),
        required(row, "token_mask"),
        rollout_logprobs=optional(row, "generation_logprobs"),
        old_logprobs=optional(row, "prev_logprobs"),
        ref_logprobs=optional(row, "reference_policy_logprobs"),
        advantages=optional(row, "advantages"),
    )
    plain = PlainRow(**fields, reward=optional(row, "total_reward", "reward"), **whole_row(row))
    sample_mask = optional(row, "sample_mask")
    if sample_mask.value not in (None, 0, 1):
        raise RowError(sample_mask.field, "must be 0 or 1", sample_mask.value)
    if sample_mask.value == 0:
        # the row stays, because its reward is part of its group's mean
        plain = replace(plain, loss_mask=Given("sample_mask", [0] * len(plain.loss_mask.value)))
    return [plain]


NEMO_RL = SourceFormat(
    "nemo_rl", ("input_ids", "token_mask", "generation_logprobs", "total_reward"), detect, plain_rows
)
