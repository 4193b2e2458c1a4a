"""Rewards that are given token by token, of which the sum is the completion's."""

from __future__ import annotations

from megatron_rl.data.formats.fields import as_list
from megatron_rl.data.formats.full_length import same_length
from megatron_rl.data.formats.plain_row import Given
from megatron_rl.data.row_error import RowError


def summed(reward: Given, completion: Given) -> Given:
    """A number as it is; of a list with one number for each token of the completion, the sum.

    Raises:
        RowError: a list of another length, or of other things than numbers.
    """
    if not isinstance(reward.value, list):
        return reward
    as_list(completion, "must be a list of whole numbers")
    same_length(reward, completion)
    if not all(isinstance(value, (bool, int, float)) for value in reward.value):
        raise RowError(reward.field, "must be a number, or a list of numbers to sum", reward.value)
    return Given(reward.field, sum(reward.value))
