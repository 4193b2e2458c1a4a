"""AdamW without Apex or TransformerEngine."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_the_same_updates_as_torch(weight_decay):
    from megatron_rl.distributed.adam import GroupStepAdamW

    options = {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": weight_decay}
    start = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    optimizers = [GroupStepAdamW([ours], **options), torch.optim.AdamW([theirs], **options)]
    for step in range(5):
        for parameter, optimizer in zip((ours, theirs), optimizers, strict=True):
            parameter.grad = torch.sin(parameter.detach() + step)
            optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_betas_of_the_configuration_reach_the_moments(tiny_config, tmp_path):
    """With b1 = 0 the first moment is the gradient g, and with b2 = .5 the second is g²/2."""
    from megatron_rl.config import load_config
    from megatron_rl.training.inputs import read_inputs
    from megatron_rl.training.step import train_step
    from megatron_rl.training.trainer import Trainer

    flags = ["--config", str(tiny_config), "--run-dir", str(tmp_path), "--adam-beta1=0", "--adam-beta2=0.5"]
    config = load_config(flags, default_config=tiny_config)
    run = Trainer(config, read_inputs(config))
    train_step(run.model, run.optimizer, run.next_batch(), run.objective, run.layout, run.batch_layout)
    (part,) = run.optimizer.megatron.chained_optimizers
    moments = list(part.optimizer.state.values())
    assert any(state["exp_avg"].abs().max() > 0 for state in moments)
    for state in moments:
        torch.testing.assert_close(state["exp_avg_sq"], 0.5 * state["exp_avg"].square())
