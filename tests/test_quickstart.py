"""The command of the README, with its known right answer."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.harness import PRETRAIN, lines_of


def test_the_quickstart_learns(tmp_path):
    """P(correct) on held-out prompts: .39 before, at least .80 after, from graded completions alone."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(PRETRAIN)]
    run = subprocess.run(
        [*command, "--loss-mode", "dro", "--run-dir", "run"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    before, after = (line["eval_completion_probability"] for line in lines_of(tmp_path / "run" / "evaluations.jsonl"))
    assert 0.36 < before < 0.42
    assert after >= 0.80
    assert "eval_completion_probability" in run.stdout
    assert "tensorboard" in run.stdout
    assert not [name for name in os.listdir(tmp_path / "runs") if name.endswith(".partial")]
