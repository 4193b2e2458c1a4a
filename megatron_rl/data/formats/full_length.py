"""Rows whose lists have an entry for each token of the prompt and of the completion; entry t belongs to token t."""

from __future__ import annotations

from typing import Any

from megatron_rl.data.formats.fields import as_list
from megatron_rl.data.formats.plain_row import Given, TokenIds
from megatron_rl.data.row_error import RowError


def same_length(given: Given, tokens: Given) -> None:
    """Raises `RowError` unless `given` is absent or a list as long as the list `tokens`."""
    if given.value is not None and len(as_list(given)) != len(tokens.value):
        raise RowError(given.field, f"has {len(given.value)} values for {len(tokens.value)} {tokens.field}")


def split(tokens: Given, mask: Given, **per_token: Given) -> dict[str, Any]:
    """Fields of a `PlainRow` from lists of the whole sequence: the completion begins with the first trained token.

    Args:
        tokens: token ids. mask: 1 for each token to train on. per_token: other lists, by their name in `PlainRow`;
            an absent one stays so, and advantages may also be one number.

    Raises:
        RowError: lengths differ, or the mask does not say where the completion begins.
    """
    as_list(tokens)
    lists = {name: given for name, given in per_token.items() if name != "advantages" or isinstance(given.value, list)}
    for given in (mask, *lists.values()):
        same_length(given, tokens)
    wrong = [value for value in as_list(mask) if value not in (0, 1)]
    if wrong:
        raise RowError(mask.field, "must hold 0 and 1 only", wrong[0])
    if 1 not in mask.value:
        raise RowError(mask.field, "masks every token: there is nothing to train on")
    start = mask.value.index(1)
    if start == 0:
        raise RowError(mask.field, "trains on the first token, which has none before it")
    cut = {name: Given(g.field, None if g.value is None else g.value[start:]) for name, g in lists.items()}
    return {
        "prompt": TokenIds(tokens.field, tokens.value[:start]),
        "completion": TokenIds(tokens.field, tokens.value[start:]),
        "loss_mask": Given(mask.field, mask.value[start:]),
        **per_token,
        **cut,
    }
