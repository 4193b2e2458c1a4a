"""From a row of a data file to samples, or to what is wrong with the row."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from megatron_rl.data import checks
from megatron_rl.data.chat import ChatTemplate, TemplateError
from megatron_rl.data.formats import (
    AUTO,
    Given,
    Messages,
    PlainRow,
    Row,
    SourceFormat,
    Text,
    TokenIds,
    format_named,
    format_of,
)
from megatron_rl.data.row_error import RowError
from megatron_rl.data.samples import Sample
from megatron_rl.data.tokenizer import SentencePieceTokenizer


@dataclass(frozen=True)
class RowFormat:
    """What rows are made into samples with.

    seq_length: the longest sample. long_rows: "error", "truncate" (cut the completion) or "drop".
    vocab_size: token ids must be below it. needs_...: whether a row without is an error.
    data_format: a name of `megatron_rl.data.formats`, or "auto". chat_template: a file, or None for the default.
    temperature: of sampling; a row that names another one is an error. None takes any.
    """

    tokenizer: SentencePieceTokenizer | None
    vocab_size: int
    seq_length: int
    long_rows: str
    needs_reward: bool
    needs_old_logprobs: bool
    data_format: str = AUTO
    needs_rollout_logprobs: bool = False
    needs_ref_logprobs: bool = False
    needs_advantages: bool = False
    needs_baseline_reward: bool = False
    temperature: float | None = None
    chat_template: str | None = None

    def for_evaluation(self) -> RowFormat:
        """The same for held-out rows, which need nothing but a prompt and a completion."""
        needs = {name: False for name in self.__dataclass_fields__ if name.startswith("needs_")}
        return replace(self, temperature=None, **needs)

    @cached_property
    def chat(self) -> ChatTemplate:
        """What renders messages. Raises `UserError` if the template cannot be used."""
        return ChatTemplate(self.chat_template)

    def source(self, row: Row) -> SourceFormat:
        """The format of a file that begins with `row`.

        Raises:
            RowError: it is to be found out, and no format fits.
            ValueError: `data_format` is no name of one.
        """
        return format_of(row) if self.data_format == AUTO else format_named(self.data_format)

    def samples(self, row: Row, source: SourceFormat) -> list[tuple[Sample | None, bool]]:
        """The row's completions, read as `source`.

        Returns:
            of each the sample, None if it is too long and to be dropped; and whether it was cut to fit.

        Raises:
            RowError: the row cannot be used.
        """
        if self.data_format == AUTO and not source.detect(row):
            message = f"is no {source.name} row like the first of its file; its fields are {', '.join(map(str, row))}"
            raise RowError("row", message)
        return [self._fit(self._sample(plain)) for plain in source.plain_rows(row)]

    def _sample(self, plain: PlainRow) -> Sample:
        self._check_given(plain)
        prompt_ids, prompt = self._prompt(plain.prompt)
        completion_ids = self._completion(plain.completion)
        if not prompt_ids:
            raise RowError(plain.prompt.field, "is empty: the completion's first token needs a token before it")
        if not completion_ids:
            raise RowError(plain.completion.field, "is empty: there is nothing to train on")
        mask = checks.loss_mask(plain.loss_mask, len(completion_ids))
        old, rollout = (checks.logprobs(given, mask) for given in (plain.old_logprobs, plain.rollout_logprobs))
        return Sample(
            token_ids=np.array(prompt_ids + completion_ids, dtype=np.int64),
            prompt_length=len(prompt_ids),
            group=prompt if plain.group.value is None else _group(plain.group),
            loss_mask=mask,
            reward=checks.number(plain.reward),
            baseline_reward=checks.number(plain.baseline_reward),
            # the old policy drew the completion unless the row tells the two apart
            old_logprobs=rollout if old is None else old,
            rollout_logprobs=old if rollout is None else rollout,
            ref_logprobs=checks.logprobs(plain.ref_logprobs, mask),
            advantages=checks.advantages(plain.advantages, mask),
        )

    def _check_given(self, plain: PlainRow) -> None:
        """Everything that is needed is there, and nothing that has no meaning for such a row."""
        if plain.old_logprobs.value is None and plain.rollout_logprobs.value is None:
            if self.needs_old_logprobs:
                raise RowError(plain.old_logprobs.field, "is missing; give --old-logprobs initial to compute them")
            if self.needs_rollout_logprobs:
                raise RowError(plain.rollout_logprobs.field, "is missing: the sampler's log-probability of each token")
        for needed, given, what in (
            (self.needs_reward, plain.reward, ""),
            (self.needs_ref_logprobs, plain.ref_logprobs, ": the reference's log-probability of each token"),
            (self.needs_advantages, plain.advantages, ": one number, or one for each token"),
            (self.needs_baseline_reward, plain.baseline_reward, ": the reward of the completion compared with"),
        ):
            if needed and given.value is None:
                raise RowError(given.field, "is missing" + what)
        if not isinstance(plain.completion, TokenIds):
            lists = (plain.loss_mask, plain.old_logprobs, plain.rollout_logprobs, plain.ref_logprobs)
            for given in (*lists, plain.advantages):
                if given.value is not None and (given is not plain.advantages or isinstance(given.value, list)):
                    raise RowError(given.field, "needs token ids: tokenizing the text again could split it differently")
        if self.temperature is not None and plain.temperature.value is not None:
            self._check_temperature(plain.temperature)

    def _check_temperature(self, given: Given) -> None:
        # files of 32-bit numbers hold 0.7 as 0.699999988
        if not math.isclose(checks.number(given), self.temperature, rel_tol=1e-6):
            message = f"must be {self.temperature}, at which log-probabilities are compared; give --temperature"
            raise RowError(given.field, message, given.value)

    def _prompt(self, given: Text | Messages | TokenIds) -> tuple[list[int], str]:
        """Token ids, and the words or numbers that they stand for."""
        if isinstance(given, TokenIds):
            return checks.token_ids(given, self.vocab_size), str(given.value)
        if isinstance(given, Messages):
            try:
                given = Text(given.field, self.chat.prompt(given.value))
            except TemplateError as error:
                raise RowError(given.field, f"the chat template fails: {error}") from None
        text = self._text(given)
        return self.tokenizer.encode_prompt(text), text

    def _completion(self, given: Text | TokenIds) -> list[int]:
        if isinstance(given, TokenIds):
            return checks.token_ids(given, self.vocab_size)
        text = self._text(given)
        return self.tokenizer.encode_completion(text)

    def _text(self, given: Text) -> str:
        if not isinstance(given.value, str):
            raise RowError(given.field, "must be text", given.value)
        if any(0xD800 <= ord(character) <= 0xDFFF for character in given.value):
            raise RowError(given.field, "has half a surrogate pair, which is no character")
        if self.tokenizer is None:
            raise RowError(given.field, "is text, which needs --tokenizer-model")
        return given.value

    def _fit(self, sample: Sample) -> tuple[Sample | None, bool]:
        if len(sample) <= self.seq_length:
            return sample, False
        if self.long_rows == "drop":
            return None, False
        if self.long_rows == "error":
            raise RowError(
                "row",
                f"has {len(sample)} tokens, more than seq_length {self.seq_length}; give --truncate or --drop-long",
            )
        if sample.prompt_length >= self.seq_length:
            raise RowError("row", f"its prompt alone fills seq_length {self.seq_length}: {sample.prompt_length} tokens")
        return sample.cut(self.seq_length), True


def _group(given: Given) -> str:
    if type(given.value) not in (str, int):
        raise RowError(given.field, "must be text or a whole number", given.value)
    return str(given.value)
