"""How checkpoints lie in their folder.

There is one folder a checkpoint, `iter_0000012`, and `latest_checkpointed_iteration.txt` with the number of the
newest whole one, as in Megatron-LM. The pointer is replaced atomically after everything else is on disk, so
that a run that was killed while saving finds the checkpoint before. Each checkpoint carries a description of
what it can be read into, so that a run which does not fit it says so before anything is started.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from megatron_rl.config import Problem, RunConfig, UserError
from megatron_rl.config.flags import flag_of

POINTER = "latest_checkpointed_iteration.txt"
DESCRIPTION = "description.yaml"
# keys of the model section that do not decide the shape or the meaning of weights
_FREE_MODEL_KEYS = {"init_method_std", "bf16", "transformer_impl", "make_vocab_size_divisible_by"}


def checkpoint_path(folder: str | Path, step: int) -> Path:
    """The checkpoint of step `step`."""
    return Path(folder) / f"iter_{step:07}"


def latest_checkpoint(folder: str | Path) -> Path | None:
    """The newest whole checkpoint in a checkpoint folder, or None if it holds none.

    Raises:
        UserError: the pointer does not name a checkpoint that is there.
    """
    pointer = Path(folder) / POINTER
    if not pointer.is_file():
        return None
    text = pointer.read_text().strip()
    path = checkpoint_path(folder, int(text)) if text.isdecimal() else None
    if path is None or not path.is_dir():
        raise UserError("checkpoint", [Problem(str(pointer), "does not name a checkpoint in its folder", repr(text))])
    return path


def required_checkpoint(flag: str, folder: str) -> Path:
    """The newest checkpoint of a folder that the user named with `flag`.

    Raises:
        UserError: the folder holds no checkpoint.
    """
    found = latest_checkpoint(folder)
    if found is None:
        raise UserError("checkpoint", [Problem(flag, f"holds no checkpoint (no {POINTER})", folder)])
    return found


def write_description(path: Path, config: RunConfig, vocab_size: int) -> None:
    """Write what the checkpoint at `path` can be read into."""
    content = {"model": _model_of(config, vocab_size), "optimizer": _optimizer_of(config)}
    (path / DESCRIPTION).write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def check_description(path: Path, config: RunConfig, vocab_size: int, *, with_optimizer: bool) -> None:
    """Compare a checkpoint with the run that is to read it.

    Args:
        with_optimizer: whether the optimizer's state is to be read too.

    Raises:
        UserError: it has no description, or belongs to another model or optimizer; every difference is named.
    """
    try:
        content = yaml.safe_load((path / DESCRIPTION).read_text(encoding="utf-8"))
        stored = dict(content["model"]) | (dict(content["optimizer"]) if with_optimizer else {})
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        problem = Problem(str(path / DESCRIPTION), f"cannot be read, so the checkpoint is not whole ({error})")
        raise UserError("checkpoint", [problem]) from None
    wanted = _model_of(config, vocab_size) | (_optimizer_of(config) if with_optimizer else {})
    differing = [
        Problem(flag_of(key), f"the checkpoint {path} was written with {stored.get(key)!r}", repr(value))
        for key, value in wanted.items()
        if stored.get(key) != value
    ]
    if differing:
        raise UserError("checkpoint", differing)


def _model_of(config: RunConfig, vocab_size: int) -> dict[str, Any]:
    model = {key: value for key, value in config.model if key not in _FREE_MODEL_KEYS}
    return model | {"vocab_size": vocab_size}


def _optimizer_of(config: RunConfig) -> dict[str, Any]:
    """What must be the same for Megatron-Core to read an optimizer's state; it would fail with a missing key."""
    parallel = config.parallel
    experts = parallel.expert_model_parallel_size
    return {
        "use_distributed_optimizer": parallel.use_distributed_optimizer,
        "expert_model_parallel_size": "above 1" if experts > 1 else 1,
        "value_model": config.advantage.value_model,
    }


def point_to(folder: Path, step: int) -> None:
    """Make the checkpoint of step `step` the latest."""
    pointer = folder / POINTER
    aside = pointer.with_suffix(".tmp")
    with aside.open("w") as file:
        file.write(str(step))
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, pointer)
