"""What every policy loss is: a frozen dataclass whose fields are its options, called with a batch of tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self

from megatron_rl.losses.options import check_options

if TYPE_CHECKING:
    from torch import Generator, Tensor

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
    place, with the counts of the global batch. The loss of a whole sequence is spread over its tokens, either
    equal at each (its mean is meant: `seq-mean-token-mean`) or in parts that add up to it (`seq-mean-token-sum`).
    Formulas are written with tensor methods, so that a loss and its options can be read and checked without
    importing torch.
    """

    name: ClassVar[str]
    uses_old_logprobs: ClassVar[bool] = True
    """Whether the loss compares with the old policy; if not, none need to be given or computed."""
    uses_advantages: ClassVar[bool] = True
    """Whether it reads advantages."""
    uses_rewards: ClassVar[bool] = False
    """Whether it reads rewards themselves."""
    uses_groups: ClassVar[bool] = False
    """Whether it compares the sequences of a group, which must then be in one global batch."""
    uses_state_values: ClassVar[bool] = False
    """Whether it reads, and trains, a value model."""
    prepares: ClassVar[bool] = False
    """Whether `prepare` must see the whole global batch first."""
    old_is_sampler: ClassVar[bool] = False
    """Whether the old policy must be the one that the completions were sampled from."""
    takes_rollout_weights: ClassVar[bool] = True
    """Whether off-policy weights multiply its token losses."""

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def default_agg_mode(self) -> str:
        """The aggregation of the paper, where none is asked for."""
        return "token-mean"

    @abstractmethod
    def __call__(self, batch: PolicyBatch) -> TokenLoss:
        """The loss of each token of `batch`, minimised."""

    def prepare(self, whole: PolicyBatch, generator: Generator) -> Tensor:
        """What depends on the whole global batch, such as a choice among its tokens or a mean over a group.

        Args:
            whole: all completion tokens of the global batch, with log-probabilities from a forward pass before
                the first backward pass, without gradient.
            generator: the same on every rank, another at every step.

        Returns:
            one entry for each token of `whole`; tokens get it back as `PolicyBatch.prepared`.
        """
        raise NotImplementedError(f"{self.name} prepares nothing")

    def after_step(self, numbers: Mapping[str, float | None]) -> Self:
        """The loss of the next step, given the metrics of this one."""
        return self

    def state(self) -> dict[str, float]:
        """What `after_step` has changed, for a checkpoint; `with_state` is its inverse."""
        return {}

    def with_state(self, state: Mapping[str, float]) -> Self:
        """The loss as it was when `state` was taken."""
        return self
