"""Unsupported libraries are named before they are imported."""

from __future__ import annotations

from importlib import metadata

import pytest

from megatron_rl.config.versions import version_problems


@pytest.mark.parametrize(
    ("version", "supported"),
    [("0.19.2", True), ("0.19.10", True), ("0.19.2+cu13", True), ("0.19.1", False), ("0.20.0", False), ("1.0", False)],
)
def test_megatron_core(monkeypatch, version, supported):
    monkeypatch.setattr(metadata, "version", lambda name: version if name == "megatron-core" else "2.14.1")
    found = [str(problem) for problem in version_problems()]
    expected = f"megatron-core = {version}: supported are versions from 0.19.2 below 0.20"
    assert found == ([] if supported else [expected])


def test_a_missing_library(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert [problem.where for problem in version_problems()] == ["torch", "megatron-core"]
