"""Everything a run reads, read and checked before a process group is started."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from megatron_rl.advantages import baseline_advantages
from megatron_rl.config import Problem, RunConfig, UserError
from megatron_rl.data.order import RowOrder
from megatron_rl.data.read import DataSet, read_files
from megatron_rl.data.rows import RowFormat
from megatron_rl.data.tokenizer import SentencePieceTokenizer
from megatron_rl.training.checkpoint_folder import required_checkpoint


@dataclass(frozen=True)
class Inputs:
    """What a run reads.

    advantages: [R] of the training rows. valid: held-out rows, or None. vocab_size: without padding.
    pretrained, load: checkpoints that were named to start from or to go on from, or None.
    """

    train: DataSet
    valid: DataSet | None
    advantages: np.ndarray
    vocab_size: int
    order: RowOrder
    train_iters: int
    pretrained: Path | None
    load: Path | None

    def fingerprint(self) -> str:
        """A digest of the training rows' tokens, the same for the same rows in the same order."""
        digest = hashlib.sha256()
        for sample in self.train.samples:
            digest.update(np.int64(sample.prompt_length).tobytes())
            digest.update(sample.token_ids.tobytes())
            digest.update(sample.loss_mask.tobytes())
        return digest.hexdigest()


def read_inputs(config: RunConfig) -> Inputs:
    """Read the tokenizer and all rows, and find the checkpoints that are named.

    Raises:
        UserError: what is wrong with them, or with keys whose rules depend on them.
    """
    data = config.data
    tokenizer = None
    if data.tokenizer_model is not None:
        tokenizer = SentencePieceTokenizer(
            data.tokenizer_model, prepend_bos=data.prepend_bos, append_eos=data.append_eos
        )
    vocab_size = _vocab_size(config, tokenizer)
    loss = config.loss.policy_loss()
    row_format = RowFormat(
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        seq_length=data.seq_length,
        long_rows="truncate" if data.truncate else "drop" if data.drop_long else "error",
        needs_reward=loss.uses_advantages,
        needs_old_logprobs=loss.uses_old_logprobs and config.loss.old_logprobs == "data",
    )
    train = read_files(data.train_data, row_format, skip_bad_rows=data.skip_bad_rows)
    valid = None
    if data.valid_data:
        valid = read_files(data.valid_data, row_format.for_evaluation(), skip_bad_rows=data.skip_bad_rows)
    if loss.uses_advantages:
        advantages = baseline_advantages(
            np.array([sample.reward for sample in train.samples]),
            [sample.prompt for sample in train.samples],
            baseline=config.loss.advantage_baseline,
            normalize=config.loss.normalize_advantages,
        )
    else:
        advantages = np.zeros(len(train.samples))
    train_iters = config.training.train_iters or math.ceil(
        config.training.epochs * len(train.samples) / data.global_batch_size
    )
    _check_schedule(config, train_iters)
    order = RowOrder(len(train.samples), data.global_batch_size, config.training.seed, data.shuffle)
    return Inputs(
        train=train,
        valid=valid,
        advantages=advantages,
        vocab_size=vocab_size,
        order=order,
        train_iters=train_iters,
        pretrained=required_checkpoint("--pretrained-checkpoint", config.checkpoint.pretrained_checkpoint),
        load=required_checkpoint("--load", config.checkpoint.load),
    )


def _vocab_size(config: RunConfig, tokenizer: SentencePieceTokenizer | None) -> int:
    """The model's vocabulary: as given, or the tokenizer's."""
    given, tp = config.model.vocab_size, config.parallel.tensor_model_parallel_size
    if tokenizer is not None and given is not None and given < tokenizer.vocab_size:
        message = f"must hold the tokenizer's {tokenizer.vocab_size} tokens"
        raise UserError("configuration", [Problem("--vocab-size", message, str(given))])
    size = given or tokenizer.vocab_size
    divisor = config.model.make_vocab_size_divisible_by
    share = -(-size // (divisor * tp)) * divisor
    if share * (tp - 1) >= size:
        message = (
            f"pads a vocabulary of {size} so far that the last of {tp} tensor-parallel ranks would hold no token; "
            f"the largest that fits is {max(1, (size - 1) // (tp - 1))}"
        )
        raise UserError("configuration", [Problem("--make-vocab-size-divisible-by", message, str(divisor))])
    return size


def _check_schedule(config: RunConfig, train_iters: int) -> None:
    warmup, decay = config.optimizer.lr_warmup_iters, config.optimizer.lr_decay_iters or train_iters
    if config.optimizer.lr_decay_style != "constant" and warmup >= decay:
        message = f"must be below the {decay} steps of the schedule"
        raise UserError("configuration", [Problem("--lr-warmup-iters", message, str(warmup))])
