"""From what is given in a field to a value that can be trained with, or to what is wrong with it."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from megatron_rl.data.formats import Given
from megatron_rl.data.row_error import RowError

_NUMBERS = {bool, int, float}


def token_ids(given: Given, vocab_size: int) -> list[int]:
    """A list of token ids below `vocab_size`. Raises `RowError` for anything else."""
    ids = given.value
    if not isinstance(ids, list) or not set(map(type, ids)) <= {int}:
        raise RowError(given.field, "must be a list of whole numbers", ids)
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        wrong = next(i for i in ids if not 0 <= i < vocab_size)
        raise RowError(given.field, f"has a token id outside the vocabulary of {vocab_size}", wrong)
    return ids


def number(given: Given) -> float:
    """A finite number, true as 1 and false as 0; NaN if none is given. Raises `RowError` for anything else."""
    if given.value is None:
        return math.nan
    # the comparison also turns away NaN, and whole numbers that no float can hold
    if type(given.value) in _NUMBERS and abs(given.value) <= sys.float_info.max:
        return float(given.value)
    raise RowError(given.field, "must be a finite number, true or false", given.value)


def loss_mask(given: Given, length: int) -> np.ndarray:
    """[length] bool, all true if none is given.

    Raises:
        RowError: a list of another length, or of other values than 0 and 1.
    """
    if given.value is None:
        return np.ones(length, dtype=bool)
    values = _list_of(given, length)
    if not set(map(type, values)) <= _NUMBERS:
        raise RowError(given.field, "must be a list of numbers", values)
    if not set(values) <= {0, 1}:
        raise RowError(given.field, "must hold 0 and 1 only", next(v for v in values if v not in (0, 1)))
    return np.array(values, dtype=bool)


def logprobs(given: Given, mask: np.ndarray) -> np.ndarray | None:
    """[R] float32 with 0 at masked tokens, of which anything may be said; None if none are given.

    Raises:
        RowError: a list of another length than `mask`, [R], or a token that counts without a finite
            log-probability that is not above 0.
    """
    if given.value is None:
        return None
    values = _floats(given, mask)
    wrong = mask & ~(np.isfinite(values) & (values <= 0))
    if wrong.any():
        raise RowError(given.field, "must be finite and not above 0", given.value[int(wrong.argmax())])
    return np.where(mask, values, np.float32(0))


def advantages(given: Given, mask: np.ndarray) -> np.ndarray | None:
    """[R] float32 with 0 at masked tokens, from a list or from one number for all; None if none are given.

    Raises:
        RowError: a list of another length than `mask`, [R], or a token that counts without a finite number.
    """
    if given.value is None:
        return None
    if not isinstance(given.value, list):
        return np.where(mask, np.float32(number(given)), np.float32(0))
    values = _floats(given, mask)
    wrong = mask & ~np.isfinite(values)
    if wrong.any():
        raise RowError(given.field, "must be finite", given.value[int(wrong.argmax())])
    return np.where(mask, values, np.float32(0))


def _list_of(given: Given, length: int) -> list[Any]:
    if not isinstance(given.value, list):
        raise RowError(given.field, "must be a list of numbers", given.value)
    if len(given.value) != length:
        raise RowError(given.field, f"has {len(given.value)} values for {length} response tokens")
    return given.value


def _floats(given: Given, mask: np.ndarray) -> np.ndarray:
    """[R] float32; a number too large for it becomes infinite."""
    values = _list_of(given, len(mask))
    if not set(map(type, values)) <= _NUMBERS:
        for value, counts in zip(values, mask, strict=True):
            if counts and type(value) not in _NUMBERS:
                raise RowError(given.field, "must be a list of numbers", value)
        values = [value if counts else 0 for value, counts in zip(values, mask, strict=True)]
    try:
        wide = np.array(values, dtype=np.float64)
    except OverflowError:
        raise RowError(given.field, "must be a list of finite numbers") from None
    with np.errstate(over="ignore"):
        return wide.astype(np.float32)
