"""Steps that must change nothing: every token masked, or a gradient that is not finite."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from tests.harness import PRETRAIN, REPO, lines_of
from tests.training.conftest import write_rows


@pytest.fixture(scope="module")
def trainer(tiny_config, tmp_path_factory):
    """A run in this process: batches of 16 rows, the first good, the second masked, the third overflowing."""
    from megatron_rl.config import load_config
    from megatron_rl.training.inputs import read_inputs
    from megatron_rl.training.trainer import Trainer

    folder = tmp_path_factory.mktemp("skipped")
    files = [folder / name for name in ("good.jsonl", "masked.jsonl", "overflowing.jsonl")]
    alone = {"rollout_logprobs": None, "ref_logprobs": None}
    write_rows(files[0], 16, seed=0)
    write_rows(files[1], 16, seed=1, **alone, response_token_ids=[1, 2], old_logprobs=[-1, -1], loss_mask=[0, 0])
    # a log-ratio whose square is beyond fp32
    write_rows(files[2], 16, seed=2, **alone, response_token_ids=[1, 2], old_logprobs=[-1, -1e30], loss_mask=[1, 1])
    flags = ["--config", str(tiny_config), "--run-dir", str(folder / "run"), "--no-shuffle", "--lr-warmup-iters=5"]
    config = load_config([*flags, "--train-data", *map(str, files)], default_config=tiny_config)
    return Trainer(config, read_inputs(config))


def state_of(trainer):
    weights = [p.detach().clone() for p in trainer.model[0].parameters()]
    optimizer = trainer.optimizer.megatron.chained_optimizers[0].optimizer
    moments = [v.clone() for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)]
    steps = [group.get("step") for group in optimizer.param_groups]
    return weights + moments, (steps, trainer.optimizer.lr, trainer.optimizer.scheduler.num_steps)


def step(trainer, number):
    from megatron_rl.training.checkpoint import Progress
    from megatron_rl.training.step import train_step

    trainer.progress = Progress(consumed_rows=16 * number)
    return train_step(
        trainer.model,
        trainer.optimizer,
        trainer.next_batch(),
        trainer.objective,
        trainer.layout,
        trainer.batch_layout,
    )


def test_only_a_good_step_changes_anything(trainer):
    assert step(trainer, 0).skipped is None
    tensors, scalars = state_of(trainer)
    for number, reason in ((1, "every token is masked"), (2, "the gradient norm is")):
        result = step(trainer, number)
        assert reason in result.skipped
        now, scalars_now = state_of(trainer)
        assert scalars_now == scalars
        assert all(torch.equal(a, b) for a, b in zip(now, tensors, strict=True))
    assert step(trainer, 0).skipped is None
    now, scalars_now = state_of(trainer)
    assert scalars_now != scalars
    assert not all(torch.equal(a, b) for a, b in zip(now, tensors, strict=True))


def test_a_masked_batch_has_loss_zero(trainer):
    assert step(trainer, 1).metrics.numbers["loss"] == 0


def test_the_run_stops_after_so_many_in_a_row(tiny_config, tmp_path):
    rows = tmp_path / "rows.jsonl"
    write_rows(
        rows,
        16,
        seed=1,
        rollout_logprobs=None,
        ref_logprobs=None,
        response_token_ids=[1, 2],
        old_logprobs=[-1, -1e30],
        loss_mask=[1, 1],
    )
    flags = ["--config", str(tiny_config), "--run-dir", str(tmp_path / "run"), "--train-data", str(rows)]
    run = subprocess.run(
        [sys.executable, str(PRETRAIN), *flags, "--train-iters=50", "--max-skipped-steps=3"],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert "stopped at step 3: 3 steps in a row changed nothing" in run.stderr
    assert "Traceback" not in run.stderr
    lines = lines_of(tmp_path / "run" / "metrics.jsonl")
    assert [line["skipped_steps"] for line in lines] == [1, 2, 3]


@pytest.mark.parametrize("flags", [[], ["--loss-mode=dro_v", "--value-model=network"]])
def test_a_run_without_any_update_can_be_saved_and_goes_on(tiny_config, tmp_path, flags):
    """Moments come with the first update: a checkpoint before it holds none, and the run that reads it begins them."""
    masked, good = tmp_path / "masked.jsonl", tmp_path / "good.jsonl"
    alone = {"rollout_logprobs": None, "ref_logprobs": None}
    write_rows(masked, 16, seed=1, **alone, response_token_ids=[1, 2], old_logprobs=[-1, -1], loss_mask=[0, 0])
    write_rows(good, 16, seed=0)

    from megatron_rl.config import load_config
    from megatron_rl.training.inputs import read_inputs
    from megatron_rl.training.trainer import Trainer

    def run(rows, steps):
        base = ["--config", str(tiny_config), "--run-dir", str(tmp_path / "run"), *flags]
        config = load_config([*base, f"--train-data={rows}", f"--train-iters={steps}"], default_config=tiny_config)
        trainer = Trainer(config, read_inputs(config))
        trainer.train()
        return trainer

    assert not run(masked, 2).optimizer.updated
    again = run(good, 4)
    assert again.optimizer.updated
    steps = [line["step"] for line in lines_of(tmp_path / "run" / "metrics.jsonl")]
    assert steps == [1, 2, 3, 4]
    assert again.progress.skipped_total == 2
