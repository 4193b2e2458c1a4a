"""Reading data files whole, before anything is started: every row is a sample, or is accounted for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from megatron_rl.config import Problem, UserError
from megatron_rl.data.rows import RowError, RowFormat
from megatron_rl.data.samples import Sample

SHOWN_PROBLEMS = 20


@dataclass
class DataSet:
    """The samples of some files in the order of their rows, and what became of the other rows."""

    samples: list[Sample] = field(default_factory=list)
    skipped: list[Problem] = field(default_factory=list)
    truncated: int = 0
    dropped: int = 0

    def summary(self) -> str:
        """One line: rows, and what was left out or cut."""
        parts = [f"{len(self.samples)} rows"]
        parts += [f"{len(self.skipped)} bad rows skipped"] if self.skipped else []
        parts += [f"{self.dropped} too long and dropped"] if self.dropped else []
        parts += [f"{self.truncated} truncated"] if self.truncated else []
        return ", ".join(parts)


def read_files(paths: list[str], row_format: RowFormat, *, skip_bad_rows: bool = False) -> DataSet:
    """Read JSONL files.

    Raises:
        UserError: a file cannot be read, or, without `skip_bad_rows`, rows cannot be used: the first twenty
            are named by file, line and field, and the rest counted; or no row is left.
    """
    data = DataSet()
    missing = []
    for path in paths:
        try:
            for number, line in _lines(path):
                _add_row(data, row_format, f"{path}:{number}", line)
        except OSError as error:
            missing.append(_unreadable(path, error))
    problems = missing + ([] if skip_bad_rows else data.skipped)
    if problems:
        more = max(0, len(problems) - SHOWN_PROBLEMS)
        raise UserError("data", problems[:SHOWN_PROBLEMS], more=more)
    if not data.samples:
        raise UserError("data", [Problem(", ".join(paths), f"holds no row that can be used ({data.summary()})")])
    return data


def check_readable(paths: list[str]) -> None:
    """Raises one UserError that names every file which cannot be opened."""
    problems = []
    for path in paths:
        try:
            Path(path).open("rb").close()
        except OSError as error:
            problems.append(_unreadable(path, error))
    if problems:
        raise UserError("data", problems)


def _unreadable(path: str, error: OSError) -> Problem:
    return Problem(path or "''", error.strerror or str(error))


def _add_row(data: DataSet, row_format: RowFormat, where: str, line: bytes) -> None:
    try:
        sample, cut = row_format.sample(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        data.skipped.append(Problem(f"{where}: row", f"is not UTF-8: {error.reason}"))
    except RowError as error:
        data.skipped.append(Problem(f"{where}: {error.field}", error.message, error.value))
    else:
        data.truncated += cut
        data.dropped += sample is None
        if sample is not None:
            data.samples.append(sample)


def _lines(path: str) -> Iterator[tuple[int, bytes]]:
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, line
