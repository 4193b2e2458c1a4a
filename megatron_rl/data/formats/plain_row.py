"""A row in the one shape that all source formats are brought into, not yet checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

Row = dict[str, Any]


class Given(NamedTuple):
    """A value, None where the row has none, and the field it stands in as the row's author wrote it."""

    field: str
    value: Any = None


class Text(Given):
    """Text, to be tokenized."""

    __slots__ = ()


class Messages(Given):
    """Turns of a conversation, each with its role and content, to be rendered and tokenized."""

    __slots__ = ()


class TokenIds(Given):
    """Token ids."""

    __slots__ = ()


@dataclass(frozen=True)
class PlainRow:
    """One prompt and one completion of R tokens.

    reward, baseline_reward: numbers. group: names the rows whose rewards are compared; by default, the prompt does.
    loss_mask, old_logprobs, rollout_logprobs, ref_logprobs: a list of R. advantages: a list of R, or one number.
    temperature: of sampling. Each is described in `megatron_rl.data.samples.Sample`.
    """

    prompt: Text | Messages | TokenIds
    completion: Text | TokenIds
    reward: Given = Given("reward")
    baseline_reward: Given = Given("baseline_reward")
    group: Given = Given("group")
    loss_mask: Given = Given("loss_mask")
    old_logprobs: Given = Given("old_logprobs")
    rollout_logprobs: Given = Given("rollout_logprobs")
    ref_logprobs: Given = Given("ref_logprobs")
    advantages: Given = Given("advantages")
    temperature: Given = Given("temperature")


@dataclass(frozen=True)
class SourceFormat:
    """One way in which people write rows.

    name: its `--data-format`. fields: those that an author is told to write. detect: whether a row is one, by the
    names of its fields. plain_rows: the completions of a row; raises `RowError` where they cannot be made out.
    """

    name: str
    fields: tuple[str, ...]
    detect: Callable[[Row], bool]
    plain_rows: Callable[[Row], list[PlainRow]]
