"""Tinker's Datum: inputs and targets are shifted against each other, and entry t belongs to `target_tokens[t]`."""

from __future__ import annotations

from typing import Any

from megatron_rl.data.formats.fields import REWARD, as_list, has, nested, optional, whole_row
from megatron_rl.data.formats.full_length import same_length, split
from megatron_rl.data.formats.plain_row import Given, PlainRow, Row, SourceFormat
from megatron_rl.data.row_error import RowError

INPUTS = "loss_fn_inputs"


def detect(row: Row) -> bool:
    return has(row, INPUTS)


def plain_rows(row: Row) -> list[PlainRow]:
    inputs, targets = _model_input(row), _tensor(row, "target_tokens")
    if targets.value is None:
        raise RowError(targets.field, "is missing")
    as_list(targets)
    if not inputs.value or len(inputs.value) != len(targets.value):
        message = f"has {len(inputs.value)} tokens for {len(targets.value)} target_tokens; there must be one each"
        raise RowError(inputs.field, message)
    if inputs.value[1:] != targets.value[:-1]:
        raise RowError(
            targets.field, "must be model_input one token later: its tokens from the second on, and one more"
        )
    mask, weights = _tensor(row, "mask"), _tensor(row, "weights")
    if (mask.value is None) == (weights.value is None):
        problem = "is missing: it says which tokens are trained" if mask.value is None else "mean the same: give one"
        raise RowError(f"{mask.field} {'or' if mask.value is None else 'and'} {weights.field}", problem)
    fields = split(
        Given(targets.field, inputs.value[:1] + targets.value),
        _shifted(mask if weights.value is None else weights, targets, first=0),
        rollout_logprobs=_shifted(_tensor(row, "logprobs"), targets),
        advantages=_shifted(_tensor(row, "advantages"), targets),
    )
    return [PlainRow(**fields, reward=optional(row, *REWARD), **whole_row(row))]


def _model_input(row: Row) -> Given:
    """Token ids, given as a list, or in an object as `tokens` or in `chunks`."""
    chunks = nested(row, "model_input.chunks")
    if chunks.value is None:
        tokens = nested(row, "model_input.tokens", "model_input")
        return Given("model_input", as_list(Given("model_input", tokens.value), "must be a list of token ids"))
    tokens: list[Any] = []
    for i, chunk in enumerate(as_list(chunks)):
        tokens += as_list(nested({f"chunks[{i}]": chunk}, f"chunks[{i}].tokens"), "must be a list of token ids")
    return Given("model_input", tokens)


def _tensor(row: Row, name: str) -> Given:
    """A list, or the list in an object of data, dtype and shape."""
    given = nested(row, f"{INPUTS}.{name}.data", f"{INPUTS}.{name}")
    return Given(f"{INPUTS}.{name}", given.value)


def _shifted(given: Given, targets: Given, first: Any = None) -> Given:
    """The list with an entry for the first token of the sequence, which is no target, before the others."""
    same_length(given, targets)
    return given if given.value is None else Given(given.field, [first, *given.value])


TINKER = SourceFormat("tinker", ("model_input", "loss_fn_inputs"), detect, plain_rows)
