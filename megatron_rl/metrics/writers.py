"""Where the numbers of a run go: `metrics.jsonl` and TensorBoard, both of which can be read while it runs."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Protocol

from torch.utils.tensorboard import SummaryWriter

from megatron_rl.metrics.reduce import StepMetrics


class MetricsWriter(Protocol):
    """Takes the metrics of a step."""

    def write(self, step: int, metrics: StepMetrics) -> None:
        """Record `metrics` as those of optimizer step `step`, counted from 1 (0: before the first)."""

    def close(self) -> None:
        """Finish; nothing is written afterwards."""


class JsonlWriter:
    """One line of JSON a step; a number that does not exist is null.

    Lines of steps after `resume_step` are removed first: those steps are about to be made again.
    """

    def __init__(self, path: Path, resume_step: int):
        if path.exists():
            kept = [line for line in path.read_text().splitlines() if _step_of(line) <= resume_step]
            aside = path.with_suffix(".tmp")
            aside.write_text("".join(line + "\n" for line in kept))
            os.replace(aside, path)
        self._file = path.open("a", encoding="utf-8")

    def write(self, step: int, metrics: StepMetrics) -> None:
        line = {"step": step} | {name: _json_number(value) for name, value in metrics.numbers.items()}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _step_of(line: str) -> float:
    """The step of a line; a line that a killed run left unfinished belongs to no step that is kept."""
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return math.inf


def _json_number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


class TensorBoardWriter:
    """Scalars and histograms as TensorBoard events."""

    def __init__(self, folder: Path, resume_step: int):
        self._writer = SummaryWriter(str(folder), purge_step=resume_step + 1)

    def write(self, step: int, metrics: StepMetrics) -> None:
        for name, value in metrics.numbers.items():
            if value is not None:
                self._writer.add_scalar(name, value, step)
        for name, h in metrics.histograms.items():
            self._writer.add_histogram_raw(
                name,
                min=float(h.edges[0]),
                max=float(h.edges[-1]),
                num=int(h.counts.sum()),
                sum=h.total,
                sum_squares=h.squares,
                bucket_limits=h.edges[1:].tolist(),
                bucket_counts=h.counts.tolist(),
                global_step=step,
            )
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
