"""The same code path on a GPU: runs where there is one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from tests.harness import PRETRAIN, REPO, lines_of
from tests.training.conftest import tiny_config  # noqa: F401  a fixture

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def run(config, folder, *flags, hide_gpu=False):
    env = os.environ | ({"CUDA_VISIBLE_DEVICES": ""} if hide_gpu else {})
    command = [sys.executable, str(PRETRAIN), "--config", str(config), "--run-dir", str(folder), *flags]
    subprocess.run(command, cwd=REPO, env=env, check=True)
    return lines_of(folder / "metrics.jsonl")


@pytest.mark.parametrize(
    ("flags", "rel"),
    [
        (["--transformer-impl=local"], 1e-3),  # fp32, TF32 off: other kernels, other orders of sums
        (["--bf16"], 0.03),
    ],
)
def test_three_steps_as_on_the_cpu(tiny_config, tmp_path, flags, rel):  # noqa: F811
    found = run(tiny_config, tmp_path / "gpu", *flags)
    expected = run(tiny_config, tmp_path / "cpu", hide_gpu=True)
    for got, want in zip(found, expected, strict=True):
        for name in ("loss", "grad_norm", "log_ratio_mean"):
            assert got[name] == pytest.approx(want[name], rel=rel)
