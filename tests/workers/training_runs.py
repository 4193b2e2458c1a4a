"""Worker of the distributed tests: runs many training runs in one start of a process group.

    torchrun --nproc-per-node N tests/workers/training_runs.py CASES.json

CASES.json maps a case's folder to its command line. A run that fails leaves `error.txt` in its folder, and
the next one goes on.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist


def main(path: str) -> None:
    torch.set_num_threads(1)
    from megatron_rl.config import load_config
    from megatron_rl.training.inputs import read_inputs
    from megatron_rl.training.trainer import Trainer

    for folder, argv in json.loads(Path(path).read_text()).items():
        try:
            config = load_config([*argv, "--run-dir", folder], default_config="unused")
            Trainer(config, read_inputs(config)).train()
        except Exception:  # whatever went wrong is the run's result, and the next run goes on
            Path(folder).mkdir(parents=True, exist_ok=True)
            (Path(folder) / "error.txt").write_text(traceback.format_exc())
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
