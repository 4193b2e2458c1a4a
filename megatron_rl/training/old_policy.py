"""Log-probabilities of the starting weights for every training row, kept for when the run goes on."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch.distributed as dist

from megatron_rl.config import Problem, UserError
from megatron_rl.data.samples import Sample

FILE = "initial_logprobs.npz"


def initial_logprobs(
    samples: Sequence[Sample],
    fingerprint: str,
    *,
    checkpoints: Path,
    resumed_from: Path | None,
    score: Callable[[], list[np.ndarray]],
) -> list[np.ndarray]:
    """Computed once at the start and written beside the run's checkpoints; read from there afterwards.

    Args:
        fingerprint: of the training rows.
        checkpoints: the run's folder of checkpoints.
        resumed_from: the folder of checkpoints that the run goes on from, or None at a start.
        score: computes them with the weights as they are, on all ranks together.

    Raises:
        UserError: the run goes on, so that its weights are no longer the starting ones, and the file is
            missing or belongs to other rows.
    """
    values = score() if resumed_from is None else _read(resumed_from / FILE, samples, fingerprint)
    if resumed_from != checkpoints and dist.get_rank() == 0:
        _write(checkpoints / FILE, values, fingerprint)
    return values


def _read(path: Path, samples: Sequence[Sample], fingerprint: str) -> list[np.ndarray]:
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
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name("partial-" + path.name)
    np.savez(aside, logprobs=np.concatenate(values), fingerprint=np.array(fingerprint))
    os.replace(aside, path)
