"""A small model and a data set of very uneven lengths, shared by the training tests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

CONFIG = """
model:
  num_layers: 4
  hidden_size: 32
  num_attention_heads: 4
  num_query_groups: 2
  ffn_hidden_size: 64
  vocab_size: 23
  make_vocab_size_divisible_by: 4
data:
  train_data: [{folder}/rows.jsonl]
  valid_data: [{folder}/heldout.jsonl]
  seq_length: 64
  global_batch_size: 16
  max_tokens_per_microbatch: 192
loss:
  loss_mode: dro
  dro_beta: 0.3
  old_logprobs: data
advantage:
  advantage_estimator: none
optimizer:
  lr: 1e-3
training:
  train_iters: 3
parallel:
  distributed_timeout_minutes: 2
"""


def write_rows(path: Path, count: int, seed: int, **more) -> None:
    """Rows of token ids with between 1 and 50 response tokens. Rewards are positive, so that no metric of the
    tests is a small difference of large numbers."""
    rng = np.random.default_rng(seed)
    with path.open("w") as file:
        for i in range(count):
            length = int(rng.choice([1, 2, 3, 5, 9, 17, 30, 50]))
            old = -rng.uniform(1, 4, length)
            row = {
                "prompt_token_ids": rng.integers(0, 23, rng.integers(1, 10)).tolist(),
                "response_token_ids": rng.integers(0, 23, length).tolist(),
                "old_logprobs": old.tolist(),
                "rollout_logprobs": (old - rng.uniform(0, 0.4, length)).tolist(),
                "ref_logprobs": (old - rng.uniform(0, 0.4, length)).tolist(),
                "group": i // 3 if i < count - 2 else (count - 4) // 3,
                "loss_mask": [1] + (rng.random(length - 1) > 0.1).astype(int).tolist(),
                "reward": float(rng.uniform(0.5, 1.5)),
            }
            file.write(json.dumps(row | more) + "\n")


@pytest.fixture(scope="session")
def tiny_config(tmp_path_factory) -> Path:
    """A run file for three steps."""
    folder = tmp_path_factory.mktemp("tiny")
    write_rows(folder / "rows.jsonl", 40, seed=0)
    write_rows(folder / "heldout.jsonl", 9, seed=1)
    path = folder / "run.yaml"
    path.write_text(CONFIG.format(folder=folder))
    return path
