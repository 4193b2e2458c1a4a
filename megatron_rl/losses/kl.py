"""Estimates of the divergence from a reference policy, as a term beside the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_MAX_LOG_RATIO = 20.0  # keeps e^lr finite in fp32


def _k1(lr: Tensor) -> Tensor:
    return lr


def _k2(lr: Tensor) -> Tensor:
    return lr.square() / 2


def _k3(lr: Tensor) -> Tensor:
    return (-lr).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).expm1() + lr


def _abs(lr: Tensor) -> Tensor:
    return lr.abs()


_ESTIMATES: dict[str, Callable[[Tensor], Tensor]] = {"k1": _k1, "k2": _k2, "k3": _k3, "abs": _abs}
KL_KINDS = (*_ESTIMATES, *(f"{kind}+" for kind in _ESTIMATES))


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, kind: str) -> Tensor:
    """[T] estimates of KL(π ‖ π_ref) at tokens drawn from π, with lr = log π − log π_ref.

    k1 = lr, k2 = lr²/2, k3 = e^−lr − 1 + lr, abs = |lr|. As expectations k1 and k3 are the divergence; but the
    gradient of k1 has expectation 0 and that of k3 is not the divergence's, while k2's is. The straight-through
    forms `k1+`, `k2+`, `k3+` and `abs+` therefore have the value of the estimate and the gradient of k2.

    Source: Schulman, "Approximating KL divergence" (2020); for the gradients Tang and Munos, "On a few pitfalls in
    KL divergence gradient estimation for RL" (arXiv 2506.09477).

    Raises:
        ValueError: an unknown kind.
    """
    if kind not in KL_KINDS:
        raise ValueError(f"unknown kind of KL estimate {kind!r}: known are {', '.join(KL_KINDS)}")
    lr = logprobs - ref_logprobs
    value = _ESTIMATES[kind.rstrip("+")](lr)
    if not kind.endswith("+"):
        return value
    with_gradient = _k2(lr)
    return value.detach() + with_gradient - with_gradient.detach()
