"""Everything a run reads, read and checked before a process group is started."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from megatron_rl.advantages import ESTIMATORS, rows_alone
from megatron_rl.config import Problem, ProblemCollector, RunConfig, UserError
from megatron_rl.data.micro_batch import padded_length
from megatron_rl.data.order import RowOrder
from megatron_rl.data.read import SHOWN_PROBLEMS, DataSet, check_readable, read_files
from megatron_rl.data.rows import RowFormat
from megatron_rl.data.tokenizer import SentencePieceTokenizer
from megatron_rl.training.checkpoint_folder import check_description, latest_checkpoint, required_checkpoint
from megatron_rl.training.objective import Objective
from megatron_rl.training.row_columns import reads_old_logprobs, reads_rollout_logprobs
from megatron_rl.training.run_folder import CHECKPOINTS


@dataclass(frozen=True)
class Inputs:
    """What a run reads.

    valid: held-out rows, or None. vocab_size: without padding. train_iters: optimizer steps.
    resume: the checkpoint to go on from, or None. pretrained: else the one whose weights to start from, or None.
    """

    train: DataSet
    valid: DataSet | None
    vocab_size: int
    order: RowOrder
    train_iters: int
    pretrained: Path | None
    resume: Path | None

    def fingerprint(self) -> str:
        """A digest of the training rows' tokens, the same for the same rows in the same order."""
        digest = hashlib.sha256()
        for sample in self.train.samples:
            digest.update(np.int64(sample.prompt_length).tobytes())
            digest.update(sample.token_ids.tobytes())
            digest.update(sample.loss_mask.tobytes())
        return digest.hexdigest()


def read_inputs(config: RunConfig) -> Inputs:
    """Read the tokenizer and all rows, and find the checkpoints to begin with.

    Raises:
        UserError: everything that is wrong with them, and with keys whose rules depend on them.
    """
    data, problems = config.data, ProblemCollector()
    tokenizer, vocab_size = None, None
    with problems.gather():
        tokenizer, vocab_size = _tokenizer_and_vocab_size(config)
    if vocab_size is None:
        # without tokens rows cannot be judged, but files that are not there can be named
        with problems.gather():
            check_readable(data.train_data + data.valid_data)
        problems.raise_any("inputs")
    row_format = RowFormat(
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        seq_length=data.seq_length,
        long_rows="truncate" if data.truncate else "drop" if data.drop_long else "error",
        data_format=data.data_format,
        chat_template=data.chat_template,
        temperature=config.loss.temperature if _compares_with_rows(config) else None,
        **_needs(config),
    )
    train, valid, resume, pretrained, train_iters = DataSet(), None, None, None, 0
    with problems.gather():
        train = read_files(data.train_data, row_format, skip_bad_rows=data.skip_bad_rows)
        train_iters = _train_iters(config, len(train.samples))
        _check_groups(config, train)
        _check_policies(config, train)
    with problems.gather():
        if data.valid_data:
            valid = read_files(data.valid_data, row_format.for_evaluation(), skip_bad_rows=data.skip_bad_rows)
    with problems.gather():
        resume = _checkpoint_to_resume(config, vocab_size)
    with problems.gather():
        if resume is None and config.checkpoint.pretrained_checkpoint is not None:
            pretrained = required_checkpoint("--pretrained-checkpoint", config.checkpoint.pretrained_checkpoint)
            check_description(pretrained, config, vocab_size, with_optimizer=False)
    problems.raise_any("inputs")
    _make_folders(config)
    return Inputs(
        train=train,
        valid=valid,
        vocab_size=vocab_size,
        order=_order(config, train),
        train_iters=train_iters,
        pretrained=pretrained,
        resume=resume,
    )


def _needs(config: RunConfig) -> dict[str, bool]:
    """What rows must hold."""
    loss = config.loss.policy_loss()
    estimates = ESTIMATORS[config.advantage.advantage_estimator].reads if loss.uses_advantages else None
    reference = config.loss.kl_coef > 0 or config.advantage.reward_kl_coef > 0
    return {
        "needs_reward": loss.uses_rewards or (loss.uses_advantages and estimates != "advantages"),
        "needs_old_logprobs": reads_old_logprobs(config) and config.loss.old_logprobs == "data",
        "needs_rollout_logprobs": reads_rollout_logprobs(config),
        "needs_ref_logprobs": reference and config.loss.ref_logprobs == "data",
        "needs_advantages": estimates == "advantages",
        "needs_baseline_reward": estimates == "baseline_reward",
    }


def _compares_with_rows(config: RunConfig) -> bool:
    """Whether log-probabilities in the rows are read, so that they must be of the run's temperature."""
    needs = _needs(config)
    return any(needs[f"needs_{policy}_logprobs"] for policy in ("old", "rollout", "ref"))


def _check_policies(config: RunConfig, train: DataSet) -> None:
    """Raises UserError where the off-policy correction would compare a policy with itself."""
    objective = Objective.of(config, 0)
    if not objective.corrects or objective.corrects_current or config.loss.old_logprobs != "data":
        return
    if all(sample.old_logprobs is sample.rollout_logprobs for sample in train.samples):
        message = (
            "compares the old policy with the sampler, and the rows hold one set of log-probabilities for both; give "
            "--old-logprobs initial or current, or loss_mode bypass_mode"
        )
        flag = "--rollout-rs" if objective.weights is None else "--rollout-is"
        raise UserError("data", [Problem(flag, message)])


def _make_folders(config: RunConfig) -> None:
    """Make the folders that the user named, so that one which cannot be made is known before the start."""
    for flag, folder in (("--run-dir", config.checkpoint.run_dir), ("--save", config.checkpoint.save)):
        if folder is not None:
            try:
                Path(folder).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                message = f"cannot be made or is no folder ({error.strerror})"
                raise UserError("inputs", [Problem(flag, message, folder)]) from None


def _order(config: RunConfig, train: DataSet) -> RowOrder:
    loss, estimator = config.loss.policy_loss(), ESTIMATORS[config.advantage.advantage_estimator]
    whole_groups = loss.uses_groups or (loss.uses_advantages and estimator.whole_groups)
    return RowOrder(
        len(train.samples),
        config.training.seed,
        config.data.shuffle,
        groups=[sample.group for sample in train.samples] if whole_groups else None,
    )


def _check_groups(config: RunConfig, train: DataSet) -> None:
    """Raises UserError, naming the rows, where rows of a prompt are to be compared and one is alone."""
    loss, name = config.loss.policy_loss(), config.advantage.advantage_estimator
    who = loss.name if loss.uses_groups else name if loss.uses_advantages and ESTIMATORS[name].compares else None
    alone = rows_alone([sample.group for sample in train.samples]) if who else []
    if alone:
        message = f"is the only row of its prompt, and {who} compares the rows of a prompt"
        problems = [Problem(train.places[i], message) for i in alone[:SHOWN_PROBLEMS]]
        raise UserError("data", problems, more=len(alone) - len(problems))


def _checkpoint_to_resume(config: RunConfig, vocab_size: int) -> Path | None:
    """The run's own newest checkpoint, so that the same command goes on after it was killed, or that of --load."""
    checkpoint = config.checkpoint
    found = None
    if checkpoint.save is not None or checkpoint.run_dir is not None:
        found = latest_checkpoint(checkpoint.save or Path(checkpoint.run_dir) / CHECKPOINTS)
    if found is None and checkpoint.load is not None:
        found = required_checkpoint("--load", checkpoint.load)
    if found is not None:
        check_description(found, config, vocab_size, with_optimizer=True)
    return found


def _tokenizer_and_vocab_size(config: RunConfig) -> tuple[SentencePieceTokenizer | None, int]:
    """The tokenizer if there is one, and the model's vocabulary: as given, or the tokenizer's."""
    data, given = config.data, config.model.vocab_size
    tokenizer = None
    if data.tokenizer_model is not None:
        tokenizer = SentencePieceTokenizer(
            data.tokenizer_model, prepend_bos=data.prepend_bos, append_eos=data.append_eos
        )
        if given is not None and given < tokenizer.vocab_size:
            message = f"must hold the tokenizer's {tokenizer.vocab_size} tokens"
            raise UserError("configuration", [Problem("--vocab-size", message, str(given))])
    size = given or tokenizer.vocab_size
    divisor, tp = config.model.make_vocab_size_divisible_by, config.parallel.tensor_model_parallel_size
    if tp > 1 and padded_length(size, divisor * tp) // tp >= size:
        message = f"pads a vocabulary of {size} so far that one of {tp} ranks holds all of it; give less than {size}"
        raise UserError("configuration", [Problem("--make-vocab-size-divisible-by", message, str(divisor))])
    return tokenizer, size


def _train_iters(config: RunConfig, rows: int) -> int:
    """The number of steps; what depends on the number of rows is checked here."""
    training, optimizer, batch = config.training, config.optimizer, config.data.global_batch_size
    problems = []
    if batch > rows:
        problems.append(Problem("--global-batch-size", f"must not exceed the {rows} training rows", str(batch)))
    steps = training.train_iters or math.ceil(training.epochs * rows / batch)
    warmup = optimizer.lr_warmup_iters
    if optimizer.lr_decay_style != "constant" and warmup >= (optimizer.lr_decay_iters or steps):
        problems.append(Problem("--lr-warmup-iters", f"must be below the {steps} steps of the schedule", str(warmup)))
    if problems:
        raise UserError("configuration", problems)
    return steps
