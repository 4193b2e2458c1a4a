"""`dro_v` through the whole trainer reaches its closed form: π ∝ π_old·e^{r/τ}, V = τ·log Z.

Three prompts of two tokens are to be reversed, with six tokens in all. Under the old policy each token is right half of
the time, and else any of the others; the rows hold every possible completion as often as the old policy draws it. So
nothing is left to sampling, and no mass can go where there are no rows, which no residual would notice.
"""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest

from megatron_rl.config import load_config
from megatron_rl.training.inputs import read_inputs
from megatron_rl.training.score import evaluate
from megatron_rl.training.trainer import Trainer

TAU, TOKENS, P_RIGHT = 0.5, 6, 0.25
CONFIG = """
model:
  num_layers: 2
  hidden_size: 32
  num_attention_heads: 4
  ffn_hidden_size: 64
  vocab_size: 6
  make_vocab_size_divisible_by: 1
data:
  train_data: [{folder}/rows.jsonl]
  valid_data: [{folder}/right.jsonl]
  seq_length: 4
  global_batch_size: 300
  max_tokens_per_microbatch: 2048
loss:
  loss_mode: sft
optimizer:
  lr: 1e-2
  lr_decay_style: cosine
  lr_warmup_iters: 10
  adam_beta2: 0.99
training:
  train_iters: 150
logging:
  log_interval: 100
"""


def write_rows(folder):
    rows, right = [], []
    for prompt in ([0, 1], [2, 3], [4, 5]):
        for completion in itertools.product(range(TOKENS), repeat=2):
            hits = [token == answer for token, answer in zip(completion, prompt[::-1], strict=True)]
            row = {
                "prompt_token_ids": prompt,
                "response_token_ids": list(completion),
                "old_logprobs": [math.log(0.5 if hit else 0.1) for hit in hits],
                "reward": int(all(hits)),
            }
            rows += [row] * 5 ** sum(hits)
            right += [row] if all(hits) else []
    for name, content in (("rows", rows), ("right", right)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))


@pytest.fixture(scope="module")
def run_file(tmp_path_factory):
    """The run file, beside the checkpoint of the old policy."""
    folder = tmp_path_factory.mktemp("optimum")
    write_rows(folder)
    path = folder / "run.yaml"
    path.write_text(CONFIG.format(folder=folder))
    config = load_config([f"--run-dir={folder / 'sft'}"], default_config=path)
    Trainer(config, read_inputs(config)).train()
    return path


@pytest.mark.parametrize("value_model", ["scalar", "head", "network"])
def test_the_closed_form(run_file, tmp_path, value_model):
    flags = ["--loss-mode=dro_v", f"--dro-tau={TAU}", "--old-logprobs=data", f"--value-model={value_model}"]
    flags += [f"--pretrained-checkpoint={run_file.parent / 'sft' / 'checkpoints'}", f"--run-dir={tmp_path}"]
    config = load_config([*flags, "--lr=5e-3", "--train-iters=200"], default_config=run_file)
    run = Trainer(config, read_inputs(config))
    run.train()

    value = TAU * math.log(P_RIGHT * math.exp(1 / TAU) + 1 - P_RIGHT)
    samples, right = run.inputs.train.samples, run.inputs.valid.samples
    found = [new.sum() - sample.old_logprobs.sum() for new, sample in zip(run.score(samples), samples, strict=True)]
    log_ratios, rewards = np.array(found), np.array([sample.reward for sample in samples])
    p_right = evaluate(right, run.score(right))["eval_completion_probability"]
    assert p_right == pytest.approx(1 / (1 + math.exp(-math.log(P_RIGHT / (1 - P_RIGHT)) - 1 / TAU)), abs=0.02)
    assert log_ratios[rewards == 1].mean() == pytest.approx((1 - value) / TAU, abs=0.03)
    assert log_ratios[rewards == 0].mean() == pytest.approx(-value / TAU, abs=0.03)
