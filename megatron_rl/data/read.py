"""Reading data files whole, before anything is started: every row is a sample, or is accounted for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from megatron_rl.config import Problem, UserError
from megatron_rl.data.files import rows_of
from megatron_rl.data.row_error import RowError
from megatron_rl.data.rows import RowFormat
from megatron_rl.data.samples import Sample

SHOWN_PROBLEMS = 20


@dataclass
class DataSet:
    """The samples of some files in the order of their rows, and what became of the other rows.

    places: for each sample its file and row, as errors name them.
    """

    samples: list[Sample] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    skipped: list[Problem] = field(default_factory=list)
    truncated: int = 0
    dropped: int = 0

    def summary(self) -> str:
        """One line: rows, and what was left out or cut."""
        parts = [f"{len(self.samples)} completions"]
        parts += [f"{len(self.skipped)} bad rows skipped"] if self.skipped else []
        parts += [f"{self.dropped} too long and dropped"] if self.dropped else []
        parts += [f"{self.truncated} truncated"] if self.truncated else []
        return ", ".join(parts)


def read_files(paths: list[str], row_format: RowFormat, *, skip_bad_rows: bool = False) -> DataSet:
    """Read JSONL, JSON and Parquet files.

    Raises:
        UserError: a file cannot be read or fits no known format, or, without `skip_bad_rows`, rows cannot be used:
            the first twenty are named by file, line and field, and the rest counted; or no row is left; or the chat
            template cannot be used.
    """
    if row_format.chat_template is not None:
        row_format.chat  # noqa: B018  loaded before the rows, so that its mistakes are told whatever they hold
    data = DataSet()
    broken = []
    for path in paths:
        try:
            _add_file(data, row_format, path)
        except OSError as error:
            broken.append(_unreadable(path, error))
        except UserError as error:
            broken += error.problems
    problems = broken + ([] if skip_bad_rows else data.skipped)
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


def _add_file(data: DataSet, row_format: RowFormat, path: str) -> None:
    source = None
    for where, row in rows_of(path):
        if isinstance(row, RowError):
            data.skipped.append(_problem(where, row))
            continue
        if source is None:
            try:
                source = row_format.source(row)
            except RowError as error:
                # of a file in an unknown format no row can be judged: one problem, not one for each row
                raise UserError("data", [_problem(where, error)]) from None
        try:
            made = row_format.samples(row, source)
        except RowError as error:
            data.skipped.append(_problem(where, error))
            continue
        for sample, cut in made:
            data.truncated += cut
            data.dropped += sample is None
            if sample is not None:
                data.samples.append(sample)
                data.places.append(where)


def _problem(where: str, error: RowError) -> Problem:
    return Problem(f"{where}: {error.field}", error.message, error.value)
