"""The clipped surrogate of PPO and what its relatives share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from megatron_rl.losses.options import fraction, option, positive_number

if TYPE_CHECKING:
    from torch import Tensor

_MAX_LOG_RATIO = 20.0  # e^20 is far beyond any clip, and keeps the ratio finite in fp32


@dataclass(frozen=True, kw_only=True)
class ClipRange:
    """The options of PPO's clip range [1 − ε_low, 1 + ε_high]."""

    clip_ratio: float = option("clip_ratio", "PPO clip range around 1", fraction, default=0.2)
    clip_ratio_low: float | None = option(
        "clip_ratio_low", "lower clip range (clip_ratio, if not given)", fraction, default=None
    )
    clip_ratio_high: float | None = option(
        "clip_ratio_high", "upper clip range (clip_ratio, if not given)", positive_number, default=None
    )

    @property
    def low(self) -> float:
        return self.clip_ratio if self.clip_ratio_low is None else self.clip_ratio_low

    @property
    def high(self) -> float:
        return self.clip_ratio if self.clip_ratio_high is None else self.clip_ratio_high


def ratio_of(log_ratio: Tensor) -> Tensor:
    """e^log_ratio, with the exponent bounded at ±20."""
    return log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()


def clipped_surrogate(ratio: Tensor, advantages: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """max(−r·A, −clip(r, 1 − low, 1 + high)·A), and where the clip holds: [T] bool."""
    plain = -ratio * advantages
    clipped = -ratio.clamp(1 - low, 1 + high) * advantages
    return plain.maximum(clipped), clipped > plain
