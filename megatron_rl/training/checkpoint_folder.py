"""How checkpoints lie in their folder.

There is one folder a checkpoint, `iter_0000012`, and `latest_checkpointed_iteration.txt` with the number of the
newest whole one, as in Megatron-LM. The pointer is replaced atomically after everything else is on disk, so
that a run that was killed while saving finds the checkpoint before.
"""

from __future__ import annotations

import os
from pathlib import Path

from megatron_rl.config import Problem, UserError

POINTER = "latest_checkpointed_iteration.txt"


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


def required_checkpoint(flag: str, folder: str | None) -> Path | None:
    """The newest checkpoint of a folder that the user named with `flag`, None if it was not named.

    Raises:
        UserError: the folder holds no checkpoint.
    """
    if folder is None:
        return None
    found = latest_checkpoint(folder)
    if found is None:
        raise UserError("checkpoint", [Problem(flag, f"holds no checkpoint (no {POINTER})", folder)])
    return found


def point_to(folder: Path, step: int) -> None:
    """Make the checkpoint of step `step` the latest."""
    pointer = folder / POINTER
    aside = pointer.with_suffix(".tmp")
    with aside.open("w") as file:
        file.write(str(step))
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, pointer)
