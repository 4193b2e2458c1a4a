"""Taking fields out of a row under the names that people use. A field that is null is taken as absent."""

from __future__ import annotations

import difflib
from typing import Any

from megatron_rl.data.formats.plain_row import Given, Messages, Row, Text, TokenIds
from megatron_rl.data.row_error import RowError

PROMPT_IDS = ("prompt_token_ids",)
COMPLETION_IDS = ("response_token_ids", "completion_token_ids")
REWARD = ("reward", "score", "label")
TEMPERATURE = ("temperature", "sampling_params.temperature", "meta_info.temperature")
_TEMPERATURE_ROOTS = ("temperature", "sampling_params", "meta_info")
_PER_TOKEN = ("loss_mask", "old_logprobs", "rollout_logprobs", "ref_logprobs", "advantages")


def has(row: Row, *names: str) -> bool:
    """Whether the row has all the fields."""
    for name in names:  # noqa: SIM110  several times as quick as all() and a generator, and called for each row
        if row.get(name) is None:
            return False
    return True


def has_any(row: Row, *names: str) -> bool:
    """Whether the row has one of the fields."""
    for name in names:  # noqa: SIM110  see above
        if row.get(name) is not None:
            return True
    return False


def optional(row: Row, *names: str) -> Given:
    """The one field of these synonyms that the row has; value None if it has none.

    Raises:
        RowError: it has several.
    """
    if len(names) == 1:
        return Given(names[0], row.get(names[0]))
    present = [name for name in names if row.get(name) is not None]
    if len(present) > 1:
        raise RowError(" and ".join(present), "mean the same: give one of them")
    if present:
        return Given(present[0], row[present[0]])
    null = [name for name in names if name in row]
    return Given(null[0] if null else " or ".join(names))


def required(row: Row, *names: str) -> Given:
    """The same, where the row must have one.

    Raises:
        RowError: it has several or none; a field that may be a misspelling is pointed out.
    """
    given = optional(row, *names)
    if given.value is None:
        raise RowError(given.field, "is missing" + misspelling(row, names))
    return given


def misspelling(row: Row, names: tuple[str, ...]) -> str:
    """A question about the field of the row that is most like one of `names`, or nothing."""
    for name in names:
        close = difflib.get_close_matches(name, [str(key) for key in row if key not in names], n=1, cutoff=0.85)
        if close:
            return f"; is it misspelt as {close[0]!r}?"
    return ""


def nested(row: Row, *paths: str) -> Given:
    """The first of these dotted paths that the row has; value None, under the first path, if it has none."""
    for path in paths:
        value: Any = row
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
            if value is None:
                break
        else:
            return Given(path, value)
    return Given(paths[0])


def as_list(given: Given, what: str = "must be a list") -> list[Any]:
    """The list that is given. Raises `RowError` if it is none."""
    if not isinstance(given.value, list):
        raise RowError(given.field, what, given.value)
    return given.value


def text_or_messages(given: Given) -> Text | Messages:
    """A prompt in words; what is no list is taken as text."""
    return Messages(*given) if isinstance(given.value, list) else Text(*given)


def prompt_of(row: Row, *, ids: tuple[str, ...] = PROMPT_IDS, words: tuple[str, ...] = ("prompt",)) -> Any:
    """The prompt of a row whose completion is token ids: its token ids, or else text or messages."""
    if has_any(row, *ids):
        return TokenIds(*optional(row, *ids))
    given = required(row, *(ids + words))
    return text_or_messages(given)


def whole_row(row: Row, group: tuple[str, ...] = ("group",)) -> dict[str, Given]:
    """What any format may say of a row as a whole: its group, baseline reward and sampling temperature.

    Here and in `per_token` an absent field is left out: that is what a `PlainRow` begins with, and quicker.
    """
    found = {}
    if row.get("baseline_reward") is not None:
        found["baseline_reward"] = Given("baseline_reward", row["baseline_reward"])
    if has_any(row, *group):
        found["group"] = optional(row, *group)
    if has_any(row, *_TEMPERATURE_ROOTS):
        found["temperature"] = nested(row, *TEMPERATURE)
    return found


def per_token(row: Row, prefix: str = "") -> dict[str, Given]:
    """What a row says under our own names, each after `prefix`, of each token of its completion."""
    return {name: Given(prefix + name, row[prefix + name]) for name in _PER_TOKEN if row.get(prefix + name) is not None}
