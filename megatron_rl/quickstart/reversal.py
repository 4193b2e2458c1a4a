"""The reversal task: four symbols out of six in, the same in reverse order out.

Small enough that everything is known. There are 6^4 = 1,296 prompts, of which 260 are held out, and one right
answer to each, so that P(correct) is computed exactly, by scoring that answer. A policy that copies the noisy
demonstrations perfectly gives each symbol right with probability 3/4 + 1/4·1/6, so P(correct) = .7917^4 = .393.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import sentencepiece

SYMBOLS = "abcdef"
LENGTH = 4
HELD_OUT = 260
NOISE = 0.25
END_OF_PROMPT = ">"


def split_prompts(seed: int = 0) -> tuple[list[str], list[str]]:
    """All prompts, as (training, held out)."""
    prompts = ["".join(symbols) + END_OF_PROMPT for symbols in itertools.product(SYMBOLS, repeat=LENGTH)]
    shuffled = [prompts[i] for i in np.random.default_rng(seed).permutation(len(prompts))]
    return shuffled[HELD_OUT:], shuffled[:HELD_OUT]


def answer(prompt: str) -> str:
    """The right completion."""
    return prompt.removesuffix(END_OF_PROMPT)[::-1]


def noisy_demonstrations(prompts: Iterable[str], copies: int, seed: int = 0) -> list[dict[str, str]]:
    """`copies` demonstrations of each prompt in which a quarter of the symbols is replaced by any of the six."""
    rng = np.random.default_rng(seed)
    rows = []
    for prompt in prompts:
        for _ in range(copies):
            symbols = [rng.choice(list(SYMBOLS)) if rng.random() < NOISE else right for right in answer(prompt)]
            rows.append({"prompt": prompt, "completion": "".join(symbols)})
    return rows


def write_tokenizer(path: Path) -> None:
    """A SentencePiece model with one token a character; the same bytes each time."""
    model = io.BytesIO()
    alphabet = SYMBOLS + END_OF_PROMPT
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(list(alphabet)),
        model_writer=model,
        model_type="char",
        vocab_size=len(alphabet) + 3,
        character_coverage=1.0,
        add_dummy_prefix=False,
        normalization_rule_name="identity",
        num_threads=1,
        minloglevel=2,
    )
    path.write_bytes(model.getvalue())
