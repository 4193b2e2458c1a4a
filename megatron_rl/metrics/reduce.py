"""From the parts that ranks and micro-batches contributed to the numbers of a step: the only place that divides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from megatron_rl.metrics.values import Distribution, Mean, Metric, Sum

QUANTILES = {"p1": 0.01, "p50": 0.5, "p99": 0.99}
_BINS = 64


@dataclass(frozen=True)
class Histogram:
    """counts: [B] values in each bin. edges: [B + 1] bin borders. total, squares: Σ values and Σ values²."""

    counts: np.ndarray
    edges: np.ndarray
    total: float
    squares: float


@dataclass
class StepMetrics:
    """numbers: by name; None where nothing counted. histograms: by name."""

    numbers: dict[str, float | None] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)


def reduce_metrics(parts: Sequence[dict[str, Metric]], group: dist.ProcessGroup | None) -> StepMetrics:
    """Join the metrics of this rank's micro-batches with those of the other ranks of `group`.

    Sums are made in fp64. A `Distribution` named x becomes x_p1, x_p50, x_p99 and a histogram x: its values
    are gathered, so that quantiles are exact whatever the layout.

    Args:
        parts: one dictionary a micro-batch, the same names in each and on every rank.
        group: ranks that hold different tokens; None for this rank alone.
    """
    result = StepMetrics()
    if not parts:
        return result
    kinds = {name: type(metric) for name, metric in sorted(parts[0].items())}
    columns = {name: [part[name] for part in parts] for name in kinds}

    sums = [name for name, kind in kinds.items() if kind in (Mean, Sum)]
    if sums:
        totals = _all_reduce(torch.stack([_sum_and_weight(columns[name]) for name in sums]), dist.ReduceOp.SUM, group)
        for name, (total, weight) in zip(sums, totals.tolist(), strict=True):
            divisor = weight if kinds[name] is Mean else 1.0
            result.numbers[name] = total / divisor if divisor else None
    for name, kind in kinds.items():
        if kind is Distribution:
            _describe(name, _gather(torch.cat([d.values.float() for d in columns[name]]), group), result)
    return result


def _sum_and_weight(column: Sequence[Mean | Sum]) -> Tensor:
    if isinstance(column[0], Sum):
        total = torch.stack([metric.value.double() for metric in column]).sum()
        return torch.stack([total, torch.ones_like(total)])
    return torch.stack([torch.stack([m.sum.double(), m.weight.double()]) for m in column]).sum(dim=0)


def _all_reduce(tensor: Tensor, op: dist.ReduceOp, group: dist.ProcessGroup | None) -> Tensor:
    if group is not None and group.size() > 1:
        dist.all_reduce(tensor, op=op, group=group)
    return tensor


def _gather(values: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """All ranks' values that count, on the host; ranks may hold different numbers of them."""
    if group is not None and group.size() > 1:
        size = torch.tensor(values.numel(), device=values.device)
        dist.all_reduce(size, op=dist.ReduceOp.MAX, group=group)
        padded = values.new_full((int(size),), float("nan"))
        padded[: values.numel()] = values
        values = values.new_empty(int(size) * group.size())
        dist.all_gather_into_tensor(values, padded, group=group)
    values = values.cpu()
    return values[~values.isnan()]


def _describe(name: str, values: Tensor, result: StepMetrics) -> None:
    array = values.double().numpy()
    finite = array[np.isfinite(array)]
    for suffix, quantile in QUANTILES.items():
        result.numbers[f"{name}_{suffix}"] = float(np.quantile(finite, quantile)) if finite.size else None
    if finite.size:
        counts, edges = np.histogram(finite, bins=_BINS)
        result.histograms[name] = Histogram(counts, edges, float(finite.sum()), float(np.square(finite).sum()))
