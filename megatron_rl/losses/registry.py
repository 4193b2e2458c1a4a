"""Policy losses by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megatron_rl.losses.policy_loss import PolicyLoss

_LOSSES: dict[str, type[PolicyLoss]] = {}


def register_policy_loss(name: str) -> Callable[[type[PolicyLoss]], type[PolicyLoss]]:
    """Class decorator: make a `PolicyLoss` known as `name` (its `--loss-mode`)."""

    def register(loss: type[PolicyLoss]) -> type[PolicyLoss]:
        if name in _LOSSES:
            raise ValueError(f"a policy loss named {name!r} is already registered: {_LOSSES[name].__qualname__}")
        loss.name = name
        _LOSSES[name] = loss
        return loss

    return register


def policy_loss_names() -> list[str]:
    """All registered names, sorted."""
    return sorted(_LOSSES)


def policy_loss_class(name: str) -> type[PolicyLoss]:
    """The class registered as `name`.

    Raises:
        ValueError: no such loss; the message lists the known names and suggests a close one.
    """
    if name in _LOSSES:
        return _LOSSES[name]
    spelling = str(name).lower().replace("-", "_")
    close = difflib.get_close_matches(spelling, _LOSSES, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ValueError(f"unknown policy loss {name!r}: {hint}known are {', '.join(policy_loss_names())}")


def build_policy_loss(name: str, **options: Any) -> PolicyLoss:
    """Make the loss `name` with its options, e.g. `build_policy_loss("dro", beta=0.5)`.

    Raises:
        ValueError: an unknown name, or a missing or wrong option (named by its flag, e.g. `dro_beta`).
        TypeError: an option that this loss does not have.
    """
    return policy_loss_class(name)(**options)
