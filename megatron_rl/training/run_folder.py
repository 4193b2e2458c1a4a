"""The folder of a run: its resolved configuration, metrics, TensorBoard events and checkpoints."""

from __future__ import annotations

import time
from pathlib import Path

import torch.distributed as dist

from megatron_rl.config import RunConfig, dump_config

CHECKPOINTS = "checkpoints"


class RunFolder:
    """Paths of a run. Made by all ranks together, since the default name holds the time."""

    def __init__(self, config: RunConfig):
        training = config.training
        default = f"runs/{config.loss.loss_mode}-{time.strftime('%Y%m%d-%H%M%S')}-seed{training.seed}"
        holder = [config.checkpoint.run_dir or default]
        dist.broadcast_object_list(holder, src=0)
        self.path = Path(holder[0])
        self.checkpoints = Path(config.checkpoint.save) if config.checkpoint.save else self.path / CHECKPOINTS
        self.tensorboard = Path(config.logging.tensorboard_dir or self.path / "tensorboard")
        self.metrics = self.path / "metrics.jsonl"
        self.evaluations = self.path / "evaluations.jsonl"
        if dist.get_rank() == 0:
            self.path.mkdir(parents=True, exist_ok=True)
        dist.barrier()

    def write_config(self, config: RunConfig) -> None:
        """Write the resolved configuration; call when the run is known to be able to begin."""
        (self.path / "config.yaml").write_text(dump_config(config), encoding="utf-8")

    def write_list(self, name: str, lines: list[str]) -> Path:
        """Write a file of one entry a line, e.g. the rows that were skipped."""
        path = self.path / name
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return path
