"""What every policy loss is: a frozen dataclass whose fields are its options, called with a batch of tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from megatron_rl.losses.options import check_options

if TYPE_CHECKING:
    from torch import Tensor

    from megatron_rl.losses.batch import PolicyBatch
    from megatron_rl.metrics.values import Metric


@dataclass(frozen=True)
class TokenLoss:
    """The result of a loss before aggregation.

    values: [T], the loss of each token. What stands at masked positions is ignored, and must be finite.
    metrics: parts of the loss's own metrics, by name.
    """

    values: Tensor
    metrics: dict[str, Metric] = field(default_factory=dict)


class PolicyLoss(ABC):
    """Base of all policy losses.

    A loss gives one value per token and never averages: `megatron_rl.losses.aggregation` does that, in one
    place, with the counts of the global batch. Formulas are written with tensor methods, so that a loss and
    its options can be read and checked without importing torch.
    """

    name: ClassVar[str]
    uses_old_logprobs: ClassVar[bool] = True
    """Whether the loss compares with the old policy; if not, none need to be given or computed."""
    uses_advantages: ClassVar[bool] = True
    """Whether rows need rewards."""

    def __post_init__(self) -> None:
        check_options(self)

    @abstractmethod
    def __call__(self, batch: PolicyBatch) -> TokenLoss:
        """The loss of each token of `batch`, minimised."""
