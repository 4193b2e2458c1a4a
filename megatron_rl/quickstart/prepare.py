"""Making the quickstart's data: demonstrations, a starting policy trained on them, and its graded completions.

    python -m megatron_rl.quickstart.prepare

writes `runs/quickstart`, whole or not at all. A run that reads from there and finds nothing calls this first.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from megatron_rl.config import RunConfig, load_config
from megatron_rl.quickstart.reversal import (
    answer,
    noisy_demonstrations,
    split_prompts,
    write_tokenizer,
)

FOLDER = Path("runs/quickstart")
SFT_CONFIG = Path(__file__).resolve().parent.parent.parent / "configs" / "quickstart_sft.yaml"
DEMONSTRATIONS = 16
SAMPLES = 16
MAX_TOKENS = 6


def ensure_prepared(config: RunConfig) -> None:
    """If the run reads the quickstart's data and there is none, make it: rank 0 does, the others wait."""
    paths = [*config.data.train_data, *config.data.valid_data, config.data.tokenizer_model or ""]
    if FOLDER.is_dir() or not any(Path(path).is_relative_to(FOLDER) for path in paths):
        return
    if os.environ.get("RANK", "0") != "0":
        while not FOLDER.is_dir():
            time.sleep(0.5)
        return
    print(f"making the quickstart's data and starting policy in {FOLDER} (about a minute) ...", flush=True)
    # a process of its own: it is one rank, whatever this run is
    alone = {k: v for k, v in os.environ.items() if not k.startswith(("TORCHELASTIC_", "GROUP_", "ROLE_", "LOCAL_"))}
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        alone.pop(name, None)
    subprocess.run([sys.executable, "-m", "megatron_rl.quickstart.prepare"], env=alone, check=True)


def main() -> None:
    partial = FOLDER.with_name("quickstart.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)

    training, held_out = split_prompts()
    write_tokenizer(partial / "tokenizer.model")
    _write_rows(partial / "demonstrations.jsonl", noisy_demonstrations(training, DEMONSTRATIONS))
    _write_rows(partial / "heldout.jsonl", [{"prompt": p, "completion": answer(p)} for p in held_out])

    trainer = _train_starting_policy(partial)
    _write_rows(partial / "train.jsonl", _graded_completions(trainer, partial / "tokenizer.model", training))
    partial.rename(FOLDER)
    print(f"wrote {FOLDER}", flush=True)


def _train_starting_policy(folder: Path):
    from megatron_rl.training.inputs import read_inputs
    from megatron_rl.training.trainer import Trainer

    flags = ["--config", str(SFT_CONFIG), "--run-dir", str(folder / "sft_run"), "--save", str(folder / "sft")]
    flags += ["--train-data", str(folder / "demonstrations.jsonl"), "--valid-data", str(folder / "heldout.jsonl")]
    flags += ["--tokenizer-model", str(folder / "tokenizer.model")]
    config = load_config(flags, default_config=SFT_CONFIG)
    trainer = Trainer(config, read_inputs(config))
    trainer.train()
    return trainer


def _graded_completions(trainer, tokenizer_path: Path, prompts: list[str]) -> list[dict]:
    """`SAMPLES` completions of each prompt, reward 1 for the right answer and 0 for any other."""
    from megatron_rl.data.tokenizer import SentencePieceTokenizer
    from megatron_rl.quickstart.sampling import sample_completions

    tokenizer = SentencePieceTokenizer(str(tokenizer_path))
    prompt_ids = [tokenizer.encode_prompt(prompt) for prompt in prompts]
    right = [tokenizer.encode_completion(answer(prompt)) for prompt in prompts]
    rows = []
    for draw in range(SAMPLES):
        completions = sample_completions(
            trainer.model[0],
            np.array(prompt_ids),
            max_tokens=MAX_TOKENS,
            eos=tokenizer.encode_completion("")[0],
            vocab_size=tokenizer.vocab_size,
            seed=draw,
        )
        rows += [
            {
                "prompt_token_ids": prompt,
                "response_token_ids": completion.token_ids,
                "old_logprobs": completion.logprobs,
                "reward": int(completion.token_ids == expected),
            }
            for prompt, expected, completion in zip(prompt_ids, right, completions, strict=True)
        ]
    return rows


def _write_rows(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
