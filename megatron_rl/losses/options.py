"""The options of a loss: declared once, as fields of its dataclass, and checked wherever they come from.

A field made by `option` carries its flag, its help and its rule. The configuration reads the fields to make
command-line flags and YAML keys, so that an option cannot exist in one place and not in the other. Nothing
here imports torch: a wrong option is reported before torch is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import MISSING, Field, field, fields
from typing import Any

Rule = Callable[[Any], str | None]


class LossOptionError(ValueError):
    """One or more wrong loss options. `problems` lists `(flag, value, message)`, one for each."""

    def __init__(self, problems: list[tuple[str, Any, str]]):
        self.problems = problems
        super().__init__("; ".join(f"{flag} {message} (got {value!r})" for flag, value, message in problems))


def option(flag: str, help: str, rule: Rule, default: Any = MISSING) -> Any:
    """A dataclass field that is the option `flag` of a loss.

    Without a default the option is required: the field then starts as None and its rule refuses None.
    """
    required = default is MISSING
    return field(
        default=None if required else default,
        metadata={"flag": flag, "help": help, "rule": rule, "required": required},
    )


def options_of(loss: type | Any) -> list[Field]:
    """The option fields of a loss class or instance, in the order of their declaration."""
    return [f for f in fields(loss) if "flag" in f.metadata]


def check_options(loss: Any) -> None:
    """Apply every option's rule to a loss; raises one `LossOptionError` that names all broken ones."""
    problems = []
    for f in options_of(loss):
        value = getattr(loss, f.name)
        if value is None and not f.metadata["required"]:
            continue
        message = "is required" if value is None else f.metadata["rule"](value)
        if message:
            problems.append((f.metadata["flag"], value, message))
    if problems:
        raise LossOptionError(problems)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def positive_number(value: Any) -> str | None:
    """Rule: a finite number above zero (bool, text, NaN and infinity are not)."""
    return None if _is_number(value) and value > 0 else "must be a positive finite number"


def fraction(value: Any) -> str | None:
    """Rule: a finite number in (0, 1)."""
    return None if _is_number(value) and 0 < value < 1 else "must be a number between 0 and 1, both excluded"


def number(value: Any) -> str | None:
    """Rule: a finite number."""
    return None if _is_number(value) else "must be a finite number"


def at_least_zero(value: Any) -> str | None:
    """Rule: a finite number, zero or above."""
    return None if _is_number(value) and value >= 0 else "must be a finite number, at least 0"


def one_of(*choices: str) -> Rule:
    """Rule: one of some words."""
    return lambda value: None if value in choices else f"must be {' or '.join(choices)}"


def boolean(value: Any) -> str | None:
    """Rule: true or false."""
    return None if isinstance(value, bool) else "must be true or false"


def above_one(value: Any) -> str | None:
    """Rule: a finite number above one."""
    return None if _is_number(value) and value > 1 else "must be a finite number above 1"
