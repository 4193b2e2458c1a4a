"""The loss and the gradient norm of a step, against DRO written out in plain torch.

Layouts and resumed runs are compared with each other elsewhere. Here the number itself is checked: nothing of the
project's packing, labels, log-probabilities, losses or aggregation is used, and the model sees one row at a time.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from megatron_rl.config import load_config
from megatron_rl.models.packed_sequences import describe_packing
from megatron_rl.training.inputs import read_inputs
from megatron_rl.training.step import train_step
from megatron_rl.training.trainer import Trainer

BETA, TEMPERATURE = 0.3, 1.3


def row_loss(model, sample, old_logprobs, advantage):
    """[completion length] DRO's loss of each token, 0 where it is masked."""
    ids = torch.from_numpy(sample.token_ids)
    positions = torch.arange(len(ids))
    logits = model(
        input_ids=ids[None],
        position_ids=positions[None],
        attention_mask=None,
        packed_seq_params=describe_packing(model.config, [len(ids)], positions),
    )[0, :, :23]
    logp = torch.log_softmax(logits.double() / TEMPERATURE, dim=-1)
    first = sample.prompt_length
    logp = torch.stack([logp[t - 1, ids[t]] for t in range(first, len(ids))])
    loss = -(logp * advantage - BETA / 2 * (logp - torch.from_numpy(old_logprobs).double()) ** 2)
    return loss * torch.from_numpy(sample.loss_mask)


def aggregate(mode, losses, counts):
    if mode == "token-mean":
        return sum(loss.sum() for loss in losses) / sum(counts)
    if mode == "seq-mean-token-mean":
        return sum(loss.sum() / n for loss, n in zip(losses, counts, strict=True) if n) / np.count_nonzero(counts)
    return sum(loss.sum() for loss in losses)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "token-sum"])
def test_loss_and_gradient_norm(tiny_config, tmp_path, mode):
    flags = ["--config", str(tiny_config), "--run-dir", str(tmp_path), f"--loss-agg-mode={mode}"]
    flags += [f"--temperature={TEMPERATURE}", "--advantage-estimator=batch-mean", "--init-method-std=0.1"]
    config = load_config(flags, default_config=tiny_config)
    run = Trainer(config, read_inputs(config))
    batch = run.next_batch()
    model = run.model[0].module

    rewards = np.array([sample.reward for sample in run.inputs.train.samples])
    losses = [row_loss(model, sample, sample.old_logprobs, sample.reward - rewards.mean()) for sample in batch.samples]
    expected = aggregate(mode, losses, [int(sample.loss_mask.sum()) for sample in batch.samples])
    gradients = torch.autograd.grad(expected, list(model.parameters()))
    norm = torch.stack([g.double().square().sum() for g in gradients]).sum().sqrt()

    found = train_step(run.model, run.optimizer, batch, run.objective, run.layout, run.batch_layout).metrics.numbers
    # the model computes in fp32
    assert found["loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert found["grad_norm"] == pytest.approx(norm.item(), rel=1e-5)
