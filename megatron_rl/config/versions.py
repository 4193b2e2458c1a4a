"""The libraries a run needs, checked before any of them is imported."""

from __future__ import annotations

import re
from importlib import metadata

from megatron_rl.config.problems import Problem

MEGATRON_CORE = ((0, 19, 2), (0, 20))
"""Supported Megatron-Core: from the first version, below the second."""


def version_problems() -> list[Problem]:
    """A problem for each library that is missing or of an unsupported version."""
    problems = []
    for name in ("torch", "megatron-core"):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            problems.append(Problem(name, "is not installed; run launch/quickstart.sh or pip install -e ."))
            continue
        if name == "megatron-core" and not _supported(version):
            low, high = (".".join(map(str, bound)) for bound in MEGATRON_CORE)
            problems.append(Problem(name, f"supported are versions from {low} below {high}", version))
    return problems


def _supported(version: str) -> bool:
    release = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    return MEGATRON_CORE[0] <= release < MEGATRON_CORE[1]
