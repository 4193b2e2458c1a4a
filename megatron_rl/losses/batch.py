"""The tokens that a policy loss sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from megatron_rl.losses.segments import Segments


@dataclass(frozen=True)
class PolicyBatch:
    """T tokens of this rank's packed micro-batch. Build it with `PolicyBatch.masked`.

    logprobs: [T] float, log-probability of each token under the policy being trained, with gradient.
    old_logprobs: [T] float, under the policy that the loss compares with.
    advantages: [T] float.
    mask: [T] bool, the tokens that count.

    What only some losses need, else None:
    segments: which sequence each token belongs to. rewards: [T] float, of the token's sequence.
    groups: [T] int64, of the token's sequence: sequences whose rewards are compared have the same number.
    state_values: [T] float, V(x) of the token's prompt, with gradient where it is being trained.
    prepared: [T], what the loss's own `prepare` found in the whole global batch.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    mask: Tensor
    segments: Segments | None = None
    rewards: Tensor | None = None
    groups: Tensor | None = None
    state_values: Tensor | None = None
    prepared: Tensor | None = None

    @classmethod
    def masked(
        cls,
        *,
        logprobs: Tensor,
        mask: Tensor,
        advantages: Tensor | None = None,
        old_logprobs: Tensor | None = None,
        rewards: Tensor | None = None,
        groups: Tensor | None = None,
        state_values: Tensor | None = None,
        prepared: Tensor | None = None,
        segments: Segments | None = None,
    ) -> PolicyBatch:
        """Make a batch in which masked positions hold constants.

        Whatever a masked position held (-inf, NaN) is replaced before any arithmetic, so that it can reach
        neither a value nor a gradient. Without `old_logprobs` the old policy is the current one, detached;
        without `advantages` they are 0.

        Raises:
            ValueError: the tensors differ in shape, or `mask` is not bool.
        """
        if not str(mask.dtype).endswith("bool"):
            raise ValueError(f"mask must be bool, got {mask.dtype}")
        given = {
            "logprobs": logprobs,
            "old_logprobs": logprobs.detach() if old_logprobs is None else old_logprobs,
            "advantages": logprobs.new_zeros(logprobs.shape) if advantages is None else advantages,
            "rewards": rewards,
            "groups": groups,
            "state_values": state_values,
            "prepared": prepared,
        }
        given = {name: tensor for name, tensor in given.items() if tensor is not None}
        shapes = {name: tuple(tensor.shape) for name, tensor in given.items()} | {"mask": tuple(mask.shape)}
        if len(set(shapes.values())) > 1:
            raise ValueError(f"a policy batch needs tensors of one shape, got {shapes}")
        return cls(**{name: tensor.where(mask, 0) for name, tensor in given.items()}, mask=mask, segments=segments)

    @property
    def log_ratio(self) -> Tensor:
        """[T] log π − log π_old, zero at masked positions."""
        return self.logprobs - self.old_logprobs

    @property
    def sequence_tokens(self) -> Tensor:
        """[T] float, counting tokens of each token's whole sequence, at least 1."""
        return self._segments().spread(self._segments().tokens).clamp(min=1)

    def sequence_sum(self, values: Tensor) -> Tensor:
        """[T], to each token the sum of `values` [T] over its whole sequence; masked ones must be 0."""
        return self._segments().spread(self._segments().sum(values))

    def sequence_mean(self, values: Tensor) -> Tensor:
        """[T], to each token the mean of `values` [T] over the counting tokens of its whole sequence."""
        return self.sequence_sum(values) / self.sequence_tokens

    def _segments(self) -> Segments:
        if self.segments is None:
            raise ValueError("this loss looks at whole sequences: give the batch its `segments`")
        return self.segments
