"""The rows of a file as it is written, each with the place that an error is to name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from megatron_rl.config import Problem, UserError
from megatron_rl.data.formats import Row
from megatron_rl.data.row_error import RowError


def rows_of(path: str) -> Iterator[tuple[str, Row | RowError]]:
    """Rows of a JSONL file, of a `.json` file that holds a list, or of a `.parquet` file.

    Yields:
        `file:line`, or `file: row n` counted from 1; and the row, or what hides it.

    Raises:
        OSError: the file cannot be opened or read.
        UserError: it is no Parquet file, or pyarrow is missing.
    """
    if path.endswith(".parquet"):
        yield from _parquet(path)
    elif path.endswith(".json") and (rows := _json_list(path)) is not None:
        for number, row in enumerate(rows, start=1):
            yield f"{path}: row {number}", _object(row)
    else:
        with Path(path).open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield f"{path}:{number}", _parsed(line)


def _parsed(line: bytes) -> Row | RowError:
    try:
        return _object(json.loads(line.decode("utf-8")))
    except UnicodeDecodeError as error:
        return RowError("row", f"is not UTF-8: {error.reason}")
    except (ValueError, RecursionError) as error:
        return RowError("row", f"is not JSON: {error}")


def _object(row: Any) -> Row | RowError:
    return row if isinstance(row, dict) else RowError("row", "must be an object", row)


def _json_list(path: str) -> list[Any] | None:
    """The list that the file holds; None if it holds something else, such as lines of JSON."""
    with Path(path).open("rb") as file:
        if file.read(1) != b"[":
            return None
        file.seek(0)
        try:
            content = json.load(file)
        except (ValueError, RecursionError):
            return None
    return content if isinstance(content, list) else None


def _parquet(path: str) -> Iterator[tuple[str, Row]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        message = "is Parquet, which needs pyarrow, and that is not installed: pip install pyarrow"
        raise UserError("data", [Problem(path, message)]) from None
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}: row {number}", row
    except pyarrow.ArrowException as error:
        raise UserError("data", [Problem(path, f"is no Parquet file that can be read ({error})")]) from None
