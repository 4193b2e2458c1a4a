"""SentencePiece tokenizers."""

from __future__ import annotations

from pathlib import Path

import sentencepiece

from megatron_rl.config import Problem, UserError


class SentencePieceTokenizer:
    """A `.model` file: text to token ids and back.

    Raises:
        UserError: the file is missing or is not a SentencePiece model, or a token that the options ask for is
            not in it.
    """

    def __init__(self, path: str, *, prepend_bos: bool = False, append_eos: bool = True):
        if not Path(path).is_file():
            raise UserError("tokenizer", [Problem("--tokenizer-model", "no such file", path)])
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        except (OSError, RuntimeError) as error:
            raise UserError("tokenizer", [Problem(path, f"not a SentencePiece model ({error})")]) from None
        self._bos = [self._special("prepend_bos", self._processor.bos_id())] if prepend_bos else []
        self._eos = [self._special("append_eos", self._processor.eos_id())] if append_eos else []

    def _special(self, option: str, token: int) -> int:
        if token < 0:
            message = "the tokenizer has no such token; turn the option off"
            raise UserError("tokenizer", [Problem(f"--{option.replace('_', '-')}", message)])
        return token

    @property
    def vocab_size(self) -> int:
        return self._processor.vocab_size()

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a prompt, after the beginning-of-sequence token if there is to be one."""
        return self._bos + self._processor.encode(text)

    def encode_completion(self, text: str) -> list[int]:
        """Token ids of a completion, before the end-of-sequence token if there is to be one."""
        return self._processor.encode(text) + self._eos

    def decode(self, token_ids: list[int]) -> str:
        return self._processor.decode(token_ids)
