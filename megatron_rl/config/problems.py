"""What is wrong with a run's configuration or data: collected, then reported all at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing to mend.

    where: the flag, the file and key, or the file and line. value: what stands there, as it was written.
    message: what is allowed, and where it helps the remedy.
    """

    where: str
    message: str
    value: str | None = None

    def __str__(self) -> str:
        shown = "" if self.value is None else f" = {self.value}"
        return f"{self.where}{shown}: {self.message}"


class UserError(Exception):
    """A mistake of the user's, with everything that is to be mended; ends a run with exit status 2."""

    def __init__(self, subject: str, problems: list[Problem], *, more: int = 0):
        self.problems, self.more = problems, more
        count = len(problems) + more
        lines = [f"{subject}: {count} problem{'s' if count > 1 else ''}"]
        lines += [f"  {problem}" for problem in problems]
        if more:
            lines.append(f"  ... and {more} more")
        super().__init__("\n".join(lines))


class ProblemCollector:
    """Gathers the problems of several independent checks, so that they can be reported together."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []
        self._more = 0

    @contextmanager
    def gather(self) -> Iterator[None]:
        """Keep the problems of a `UserError` raised inside, and go on after the block."""
        try:
            yield
        except UserError as error:
            self._problems += error.problems
            self._more += error.more

    def raise_any(self, subject: str) -> None:
        """Raises one `UserError` with everything gathered, if there is anything."""
        if self._problems:
            raise UserError(subject, self._problems, more=self._more)
