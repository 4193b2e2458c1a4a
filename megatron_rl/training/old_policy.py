"""Log-probabilities of the old policy for every training row, from the rows or from the starting weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch.distributed as dist

from megatron_rl.config import Problem, UserError
from megatron_rl.data.samples import Sample


def initial_logprobs(
    path: Path, samples: Sequence[Sample], fingerprint: str, *, resuming: bool, score: Callable[[], list[np.ndarray]]
) -> list[np.ndarray]:
    """Those of the starting weights: computed once, kept in the run folder for when the run goes on.

    Args:
        path: where they are kept. fingerprint: of the training rows. score: computes them, on all ranks together.

    Raises:
        UserError: the run goes on from a checkpoint, whose weights are no longer the starting ones, and the
            file is missing or belongs to other rows.
    """
    if not resuming:
        values = score()
        if dist.get_rank() == 0:
            _write(path, values, fingerprint)
        return values
    if not path.is_file():
        message = "is missing: the old policy's log-probabilities cannot be made again from a later checkpoint"
        raise UserError("resume", [Problem(str(path), message)])
    with np.load(path, allow_pickle=False) as stored:
        if str(stored["fingerprint"]) != fingerprint:
            message = "belongs to other training rows; resume with the data that the run began with"
            raise UserError("resume", [Problem(str(path), message)])
        ends = np.cumsum([sample.completion_length for sample in samples])
        return np.split(stored["logprobs"], ends[:-1])


def _write(path: Path, values: list[np.ndarray], fingerprint: str) -> None:
    aside = path.with_name("." + path.name)
    np.savez(aside, logprobs=np.concatenate(values), fingerprint=np.array(fingerprint))
    os.replace(aside, path)
