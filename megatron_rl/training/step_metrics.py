"""The metrics of a step, from what the micro-batches of the last stage handed back to numbers on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from megatron_rl.distributed.parallel import ParallelLayout
from megatron_rl.metrics.reduce import StepMetrics, reduce_metrics


def reduce_step_metrics(parts: Sequence[dict[str, Any]], layout: ParallelLayout) -> StepMetrics:
    """Reduce the `metrics` of each of `parts` over ranks with other tokens, and share them with all stages."""
    metrics = None
    if layout.is_last_stage:
        metrics = reduce_metrics([part["metrics"] for part in parts], layout.dp_cp_group)
    if layout.pp_group.size() == 1:
        return metrics
    holder = [metrics]
    last = dist.get_global_rank(layout.pp_group, layout.pp_group.size() - 1)
    dist.broadcast_object_list(holder, src=last, group=layout.pp_group, device=layout.device)
    return holder[0]
