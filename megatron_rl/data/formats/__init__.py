"""The ways in which people write rows: one file each, and here the order in which they are tried.

A format that is told by names no other uses comes before one whose names are common.
"""

from __future__ import annotations

from megatron_rl.data.formats.areal import AREAL
from megatron_rl.data.formats.fields import misspelling
from megatron_rl.data.formats.messages import MESSAGES
from megatron_rl.data.formats.nemo_rl import NEMO_RL
from megatron_rl.data.formats.nested import NESTED
from megatron_rl.data.formats.plain import PLAIN
from megatron_rl.data.formats.plain_row import Given, Messages, PlainRow, Row, SourceFormat, Text, TokenIds
from megatron_rl.data.formats.sglang import SGLANG
from megatron_rl.data.formats.skyrl import SKYRL
from megatron_rl.data.formats.slime import SLIME
from megatron_rl.data.formats.tinker import TINKER
from megatron_rl.data.formats.trl import TRL
from megatron_rl.data.formats.verl import VERL
from megatron_rl.data.formats.vllm import VLLM
from megatron_rl.data.row_error import RowError

FORMATS = (TINKER, SLIME, SGLANG, NEMO_RL, AREAL, SKYRL, VERL, MESSAGES, VLLM, NESTED, TRL, PLAIN)
AUTO = "auto"


def format_named(name: str) -> SourceFormat:
    """The format of a `--data-format` other than auto. Raises ValueError, with the known names, if there is none."""
    for source in FORMATS:
        if source.name == name:
            return source
    raise ValueError(f"unknown data format {name!r}: known are {', '.join([AUTO, *(s.name for s in FORMATS)])}")


def format_of(row: Row) -> SourceFormat:
    """The first format that a row fits by the names of its fields.

    Raises:
        RowError: it fits none; the message names the row's fields, a likely misspelling and the known formats.
    """
    for source in FORMATS:
        if source.detect(row):
            return source
    names = tuple(dict.fromkeys(field for source in reversed(FORMATS) for field in source.fields))
    known = "; ".join(f"{source.name} ({', '.join(source.fields)})" for source in reversed(FORMATS))
    fields = ", ".join(map(str, row)) or "none"
    hint = misspelling(row, names)
    raise RowError("row", f"fits no known format; its fields are {fields}{hint}; known formats are {known}")


__all__ = [
    "AUTO",
    "FORMATS",
    "Given",
    "Messages",
    "PlainRow",
    "Row",
    "SourceFormat",
    "Text",
    "TokenIds",
    "format_named",
    "format_of",
]
