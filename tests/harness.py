"""Starting groups of processes from tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
PRETRAIN = REPO / "launch" / "pretrain_rl.py"


def torchrun(processes: int, script: Path, *args: str, timeout: float = 600) -> subprocess.CompletedProcess:
    """Run a script on some gloo processes; stdout and stderr together in `stdout`.

    One thread a process: the machine's cores are shared by all of them.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return subprocess.run(
        [*command, str(script), *args],
        cwd=REPO,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPO)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )


def lines_of(path: Path) -> list[dict]:
    """A JSONL file."""
    return [json.loads(line) for line in path.read_text().splitlines()]
