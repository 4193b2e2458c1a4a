#!/usr/bin/env python3
"""Train a language model on graded completions.

    torchrun --nproc-per-node 8 launch/pretrain_rl.py --loss-mode dro

Without `--config` it runs the quickstart, whose data it makes first. `--help` lists every flag.
Exit status: 0 done, 1 stopped by an error, 2 a mistake in the configuration or the data, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from megatron_rl.config import UserError, load_config
from megatron_rl.quickstart.prepare import ensure_prepared

QUICKSTART = Path(__file__).resolve().parent.parent / "configs" / "quickstart.yaml"


def main(argv: list[str]) -> int:
    try:
        # torch is not imported before the configuration is known to be right
        config = load_config(argv, default_config=QUICKSTART)
        ensure_prepared(config)

        from megatron_rl.training.inputs import read_inputs

        inputs = read_inputs(config)
    except UserError as error:
        return report(error)

    import torch.distributed as dist

    from megatron_rl.training.trainer import Trainer, TrainingStopped

    try:
        Trainer(config, inputs).train()
    except (UserError, TrainingStopped) as error:
        return report(error)
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") == "0":
            print("interrupted; the same command with --run-dir goes on from the last checkpoint", file=sys.stderr)
        return 130
    dist.destroy_process_group()
    return 0


def report(error: Exception) -> int:
    """Say once what is wrong, on the first rank.

    The other ranks wait, so as not to end the run before it has spoken. Whoever is still there then found
    something that the first rank did not, such as a file missing on one machine, and says so for its machine.
    """
    if os.environ.get("RANK", "0") != "0":
        time.sleep(10)
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(error, file=sys.stderr, flush=True)
    return 2 if isinstance(error, UserError) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
