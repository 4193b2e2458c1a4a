"""Correction for completions that another policy drew: importance weights, and rejection of what is too far off.

The log-ratio here is log π − log μ, with μ the sampler (the behaviour policy) and π the policy that the loss's ratio
is taken against (the proximal policy). What the loss itself compares, the current policy with the proximal one, is
another ratio: decoupled PPO multiplies the two.

Nothing here imports torch: criteria are read with the configuration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from megatron_rl.losses.segments import Segments

_MAX_LOG_RATIO = 20.0  # keeps e^lr finite in fp32
WEIGHT_LEVELS = ("none", "token", "sequence")
SCOPES = ("token", "sequence", "sum", "max")
KINDS = ("k1", "k2", "k3")


@dataclass(frozen=True)
class ImportanceWeights:
    """Weights π/μ that multiply token losses, held fixed.

    level: "token", or "sequence" for the product over the completion at each of its tokens.
    threshold: larger weights are cut to it (truncated importance sampling, TIS).
    lower: if given, weights outside [lower, threshold] are 0 instead (IcePop).

    Sources: Espeholt et al., "IMPALA" (arXiv 1802.01561) for truncation; Ling Team, "Every Step Evolves"
    (arXiv 2510.18855) for IcePop.
    """

    level: str
    threshold: float = 2.0
    lower: float | None = None

    def __call__(self, log_ratio: Tensor, mask: Tensor, segments: Segments) -> Tensor:
        """[T] weights of log-ratios [T]; 0 at masked tokens."""
        log_ratio = log_ratio.where(mask, 0)
        if self.level == "sequence":
            log_ratio = segments.spread(segments.sum(log_ratio))
        weights = log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
        if self.lower is None:
            weights = weights.clamp(max=self.threshold)
        else:
            weights = weights.masked_fill((weights > self.threshold) | (weights < self.lower), 0.0)
        return weights.where(mask, 0.0)


@dataclass(frozen=True)
class Rejection:
    """A criterion by which tokens or whole sequences are left out, as if their mask said so (MIS).

    kind: "k1", the ratio itself, kept within [lower, upper]; "k2", lr²/2, or "k3", e^lr − 1 − lr, kept up to `upper`.
    scope: "token"; "sequence", the mean of kind (of lr, for k1) over the completion's tokens decides about all of
    them; "sum", their sum; "max", a completion goes if one of its tokens would.
    """

    scope: str
    kind: str
    upper: float
    lower: float

    @classmethod
    def parse(cls, text: str) -> Rejection:
        """Read `SCOPE_KIND:UPPER` or `SCOPE_k1:LOWER:UPPER`; without LOWER it is 1/UPPER.

        Raises:
            ValueError: what is wrong with the text.
        """
        name, *bounds = text.split(":")
        scope, _, kind = name.partition("_")
        if scope not in SCOPES or kind not in KINDS:
            known = f"{', '.join(SCOPES)}, then _ and {', '.join(KINDS)}"
            raise ValueError(f"{name!r} is no criterion: it is one of {known}, as in token_k1:0.5:2 or sequence_k3:0.1")
        try:
            numbers = [float(bound) for bound in bounds]
        except ValueError:
            numbers = []
        if not numbers or len(numbers) > (2 if kind == "k1" else 1) or not all(0 < n < math.inf for n in numbers):
            wanted = "one bound or two" if kind == "k1" else "one bound"
            raise ValueError(f"{text!r} needs {wanted} after a colon, positive numbers, as in {name}:2")
        upper = numbers[-1]
        lower = numbers[0] if len(numbers) == 2 else 1 / upper
        if kind == "k1" and not lower <= 1 <= upper:
            raise ValueError(f"{text!r} must let the ratio 1 pass")
        return cls(scope, kind, upper, lower)

    def __call__(self, log_ratio: Tensor, mask: Tensor, segments: Segments) -> Tensor:
        """[T] bool, the tokens of log-ratios [T] to leave out."""
        log_ratio = log_ratio.where(mask, 0)
        if self.scope == "max":
            bad = self._outside(self._measure(log_ratio)) & mask
            return segments.spread(segments.sum(bad.to(log_ratio.dtype))) > 0
        measure = self._measure(log_ratio)
        if self.scope != "token":
            total = segments.sum(measure)
            measure = segments.spread(total / segments.tokens.clamp(min=1) if self.scope == "sequence" else total)
        return self._outside(measure)

    def _measure(self, log_ratio: Tensor) -> Tensor:
        if self.kind == "k1":
            return log_ratio
        if self.kind == "k2":
            return log_ratio.square() / 2
        return log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).expm1() - log_ratio

    def _outside(self, measure: Tensor) -> Tensor:
        if self.kind == "k1":
            return (measure > math.log(self.upper)) | (measure < math.log(self.lower))
        return measure > self.upper
