"""Process groups: from environment variables and the configuration to Megatron's parallel state."""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel

from megatron_rl.config import RunConfig
from megatron_rl.config.rules import sequence_divisor
from megatron_rl.data.global_batch import BatchLayout


@dataclass(frozen=True)
class ParallelLayout:
    """Where this rank stands, read once from Megatron's parallel state."""

    device: torch.device
    rank: int
    tp_group: dist.ProcessGroup
    cp_group: dist.ProcessGroup
    pp_group: dist.ProcessGroup
    dp_cp_group: dist.ProcessGroup
    data_parallel_size: int
    data_parallel_rank: int
    is_last_stage: bool

    @property
    def holds_results(self) -> bool:
        """Whether this rank's loss and log-probabilities count: one rank of each tensor-parallel group, last stage."""
        return self.is_last_stage and self.tp_group.rank() == 0


def start_process_group(timeout_minutes: int) -> torch.device:
    """Join torchrun's process group, or be alone without torchrun; NCCL with CUDA, else gloo."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        os.environ.setdefault(name, value)
    # Megatron-Core overlaps communication in the order in which kernels were queued
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        alone = "MASTER_PORT" not in os.environ
        dist.init_process_group(
            backend="nccl" if cuda else "gloo",
            timeout=datetime.timedelta(minutes=timeout_minutes),
            store=dist.TCPStore("127.0.0.1", 0, 1, is_master=True) if alone else None,
            rank=int(os.environ["RANK"]) if alone else -1,
            world_size=int(os.environ["WORLD_SIZE"]) if alone else -1,
        )
    return device


def start_model_parallel(config: RunConfig, device: torch.device) -> ParallelLayout:
    """Make Megatron's groups for the configured layout, replacing those of a layout before it, and seed."""
    parallel = config.parallel
    if parallel_state.model_parallel_is_initialized():
        _end_groups()
        parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=parallel.tensor_model_parallel_size,
        pipeline_model_parallel_size=parallel.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=parallel.virtual_pipeline_model_parallel_size,
        context_parallel_size=parallel.context_parallel_size,
        expert_model_parallel_size=parallel.expert_model_parallel_size,
        expert_tensor_parallel_size=parallel.expert_tensor_parallel_size,
        distributed_timeout_minutes=parallel.distributed_timeout_minutes,
        create_gloo_process_groups=False,
    )
    torch.manual_seed(config.training.seed)
    tensor_parallel.model_parallel_cuda_manual_seed(config.training.seed, force_reset_rng=True)
    return ParallelLayout(
        device=device,
        rank=dist.get_rank(),
        tp_group=parallel_state.get_tensor_model_parallel_group(),
        cp_group=parallel_state.get_context_parallel_group(),
        pp_group=parallel_state.get_pipeline_model_parallel_group(),
        dp_cp_group=parallel_state.get_data_parallel_group(with_context_parallel=True),
        data_parallel_size=parallel_state.get_data_parallel_world_size(),
        data_parallel_rank=parallel_state.get_data_parallel_rank(),
        is_last_stage=parallel_state.is_pipeline_last_stage(ignore_virtual=True),
    )


def _end_groups() -> None:
    """End the groups of the layout before: Megatron-Core only forgets them, and each keeps threads and memory."""
    for group in parallel_state._global_process_group_list or []:
        if isinstance(group, dist.ProcessGroup):
            dist.destroy_process_group(group)


def batch_layout(config: RunConfig, layout: ParallelLayout) -> BatchLayout:
    """How this rank takes part in global batches."""
    parallel = config.parallel
    tp, cp = parallel.tensor_model_parallel_size, parallel.context_parallel_size
    divisor = sequence_divisor(tp, cp)
    capacity = config.data.max_tokens_per_microbatch or -(-config.data.seq_length // divisor) * divisor
    interleaved = parallel.virtual_pipeline_model_parallel_size
    return BatchLayout(
        max_tokens=capacity,
        data_parallel_size=layout.data_parallel_size,
        data_parallel_rank=layout.data_parallel_rank,
        context_parallel_size=cp,
        context_parallel_rank=layout.cp_group.rank(),
        sequence_divisor=divisor,
        total_divisor=tp if parallel.sequence_parallel else 1,
        micro_batch_multiple=parallel.pipeline_model_parallel_size if interleaved else 1,
    )
