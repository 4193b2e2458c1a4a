"""What is wrong with a row of a data file."""

from __future__ import annotations

from typing import Any

_ABSENT = object()


class RowError(ValueError):
    """A row that cannot be used: the field, its value if it is short enough to show, and what is allowed."""

    def __init__(self, field: str, message: str, value: Any = _ABSENT):
        self.field = field
        self.message = message
        shown = "" if value is _ABSENT else repr(value)
        self.value = (shown if len(shown) <= 40 else shown[:37] + "...") or None
        super().__init__(message)
