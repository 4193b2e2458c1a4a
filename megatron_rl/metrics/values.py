"""What a metric is before it is a number: parts that add up, whichever rank or micro-batch they come from.

A mean of means depends on how the batch was cut. So a micro-batch contributes sums, weights and samples, and only the
reduction at the end of a step divides. All parts are tensors: nothing here waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Mean:
    """`sum / weight` over the global batch; both scalars. A weight of zero reports no value."""

    sum: Tensor
    weight: Tensor


@dataclass(frozen=True)
class Sum:
    """The total over the global batch; a scalar."""

    value: Tensor


@dataclass(frozen=True)
class Distribution:
    """All values of the global batch, reported as its quantiles P1, P50, P99 and a histogram.

    `values` has any one-dimensional shape; NaN marks positions that do not count.
    """

    values: Tensor


Metric = Mean | Sum | Distribution
