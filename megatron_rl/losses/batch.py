"""The tokens that a policy loss sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PolicyBatch:
    """T tokens of this rank's packed micro-batch. Build it with `PolicyBatch.masked`.

    logprobs: [T] float, log-probability of each token under the policy being trained, with gradient.
    old_logprobs: [T] float, under the policy that the loss compares with.
    advantages: [T] float.
    mask: [T] bool, the tokens that count.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    mask: Tensor

    @classmethod
    def masked(
        cls,
        *,
        logprobs: Tensor,
        advantages: Tensor,
        mask: Tensor,
        old_logprobs: Tensor | None = None,
    ) -> PolicyBatch:
        """Make a batch in which masked positions hold constants.

        Whatever a masked position held (-inf, NaN) is replaced before any arithmetic, so that it can reach
        neither a value nor a gradient. Without `old_logprobs` the old policy is the current one, detached.

        Raises:
            ValueError: the tensors differ in shape, or `mask` is not bool.
        """
        if old_logprobs is None:
            old_logprobs = logprobs.detach()
        given = {"logprobs": logprobs, "old_logprobs": old_logprobs, "advantages": advantages, "mask": mask}
        shapes = {name: tuple(tensor.shape) for name, tensor in given.items()}
        if len(set(shapes.values())) > 1:
            raise ValueError(f"a policy batch needs tensors of one shape, got {shapes}")
        if not str(mask.dtype).endswith("bool"):
            raise ValueError(f"mask must be bool, got {mask.dtype}")
        return cls(
            logprobs=logprobs.where(mask, 0.0),
            old_logprobs=old_logprobs.where(mask, 0.0),
            advantages=advantages.where(mask, 0.0),
            mask=mask,
        )

    @property
    def log_ratio(self) -> Tensor:
        """[T] log π − log π_old, zero at masked positions."""
        return self.logprobs - self.old_logprobs
