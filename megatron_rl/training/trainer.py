"""The story of a run: set up, look, train, look again, save."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from megatron_rl.config import RunConfig
from megatron_rl.data.global_batch import GlobalBatch
from megatron_rl.distributed.parallel import batch_layout, start_model_parallel, start_process_group
from megatron_rl.losses import PolicyLoss
from megatron_rl.metrics.console import RunConsole
from megatron_rl.metrics.reduce import StepMetrics
from megatron_rl.metrics.writers import JsonlWriter, MetricsWriter, TensorBoardWriter
from megatron_rl.models.gpt import build_model
from megatron_rl.training.checkpoint import Progress, load_checkpoint, load_weights, save_checkpoint
from megatron_rl.training.critic import make_critic
from megatron_rl.training.inputs import Inputs
from megatron_rl.training.objective import Objective
from megatron_rl.training.old_policy import initial_logprobs
from megatron_rl.training.optimizer import Optimizer
from megatron_rl.training.row_columns import RowColumns, reads_initial_logprobs
from megatron_rl.training.run_folder import RunFolder
from megatron_rl.training.score import evaluate, score_samples
from megatron_rl.training.step import StepResult, train_step


class TrainingStopped(RuntimeError):
    """Too many steps in a row changed nothing."""


class Trainer:
    """A run on this rank, made from a checked configuration and the inputs that were read for it.

    Attributes that outlive a step: `model` (chunks of this rank), `optimizer`, `critic`, `objective`, `progress`.
    """

    def __init__(self, config: RunConfig, inputs: Inputs):
        self.config, self.inputs = config, inputs
        device = start_process_group(config.parallel.distributed_timeout_minutes)
        self.layout = start_model_parallel(config, device)
        self.batch_layout = batch_layout(config, self.layout)
        self.folder = RunFolder(config)
        self.console = RunConsole(show=self.layout.rank == 0, log_interval=config.logging.log_interval)
        self.objective = Objective.of(config, inputs.vocab_size)
        role = "policy with value head" if config.advantage.value_model == "head" else "policy"
        self.model = build_model(config, inputs.vocab_size, device, role)
        if inputs.pretrained is not None:
            load_weights(inputs.pretrained, self.model)
        self.optimizer = Optimizer(config, self.model, inputs.train_iters)
        self.critic = make_critic(
            config, inputs.vocab_size, inputs.train_iters, self.layout, self.batch_layout, inputs.pretrained
        )
        self.progress = Progress()
        if inputs.resume is not None:
            self.progress, loss_state = load_checkpoint(
                inputs.resume, self.model, self.optimizer, config, critic=self.critic
            )
            self._set_loss(self.objective.loss.with_state(loss_state))
        self.columns = RowColumns(config, inputs.train.samples, self._initial_logprobs())
        self.writers, self.evaluation_writers = self._writers()
        self._describe()

    def train(self) -> None:
        """Train until `train_iters` steps are done, evaluating and saving on the way.

        Raises:
            TrainingStopped: `max_skipped_steps` steps in a row changed nothing.
        """
        training, checkpoint, last = self.config.training, self.config.checkpoint, self.inputs.train_iters
        if self.progress.step >= last:
            self.console.say(f"nothing to do: {self.progress.step} steps are done, {last} were asked for")
            return
        before = self._evaluate() if self.progress.step == 0 else {}
        after = {}
        self.console.start(self.progress.step, last)
        try:
            while self.progress.step < last:
                self._step()
                step = self.progress.step
                if step == last or (training.eval_interval and step % training.eval_interval == 0):
                    after = self._evaluate()
                if step == last or (checkpoint.save_interval and step % checkpoint.save_interval == 0):
                    self.save()
        finally:
            self.console.stop()
            for writer in self.writers + self.evaluation_writers:
                writer.close()
        for name in sorted(before.keys() & after.keys()):
            self.console.say(f"{name}: {before[name]:.4g} before, {after[name]:.4g} after {last} steps")
        self.console.say(f"done; results are in {self.folder.path}: metrics.jsonl, evaluations.jsonl, tensorboard")

    def next_batch(self) -> GlobalBatch:
        """The global batch of the next step; the same on every rank."""
        return self.columns.batch(
            self.inputs.order.rows(self.progress.consumed_rows, self.config.data.global_batch_size)
        )

    def save(self) -> None:
        """Write a checkpoint of the run as it stands."""
        path = save_checkpoint(
            self.folder.checkpoints,
            self.progress,
            self.model,
            self.optimizer,
            self.config,
            self.inputs.vocab_size,
            loss_state=self.objective.loss.state(),
            critic=self.critic,
        )
        self.console.say(f"saved {path}")

    def _step(self) -> None:
        started = time.perf_counter()
        batch = self.next_batch()
        result = train_step(
            self.model,
            self.optimizer,
            batch,
            self.objective,
            self.layout,
            self.batch_layout,
            critic=self.critic,
            seed=self.config.training.seed * 1_000_003 + self.progress.step,
        )
        seconds = time.perf_counter() - started
        skipped = result.skipped is not None
        self.progress = Progress(
            step=self.progress.step + 1,
            consumed_rows=self.progress.consumed_rows + len(batch.samples),
            skipped_in_row=self.progress.skipped_in_row + 1 if skipped else 0,
            skipped_total=self.progress.skipped_total + skipped,
        )
        if not skipped:
            self._set_loss(self.objective.loss.after_step(result.metrics.numbers))
        rewards = np.array([sample.reward for sample in batch.samples])
        advantages = batch.columns.get("advantages")
        result.metrics.numbers |= {
            "tokens": batch.num_tokens,
            "tokens_per_second": batch.num_tokens / seconds,
            "loss_tokens": result.batch.info.num_tokens,
            "skipped_steps": self.progress.skipped_total,
        }
        if not np.isnan(rewards).any():
            result.metrics.numbers["reward"] = float(rewards.mean())
        if advantages is not None:
            first = advantages[batch.first_slots[:-1]].astype(np.float64)
            result.metrics.numbers |= {"advantage_mean": float(first.mean()), "advantage_std": float(first.std())}
        for writer in self.writers:
            writer.write(self.progress.step, result.metrics)
        self.console.step(self.progress.step, result.metrics, seconds)
        self._stop_if_stuck(result)

    def _stop_if_stuck(self, result: StepResult) -> None:
        if result.skipped is None:
            return
        step, limit = self.progress.step, self.config.training.max_skipped_steps
        self.console.say(f"step {step} changed nothing: {result.skipped}")
        if self.progress.skipped_in_row >= limit:
            raise TrainingStopped(
                f"stopped at step {step}: {limit} steps in a row changed nothing, the last because {result.skipped}. "
                "Check the learning rate, clip_grad and the data; --max-skipped-steps sets the limit."
            )

    def _evaluate(self) -> dict[str, float]:
        if self.inputs.valid is None:
            return {}
        samples = self.inputs.valid.samples
        found = evaluate(samples, self.score(samples))
        for writer in self.evaluation_writers:
            writer.write(self.progress.step, StepMetrics(found))
        numbers = "  ".join(f"{name} {value:.4g}" for name, value in found.items())
        self.console.say(f"held-out rows at step {self.progress.step}: {numbers}")
        return found

    def score(self, samples: list) -> list[np.ndarray]:
        """For each sample the log-probabilities of its completion under the policy as it is."""
        return score_samples(
            self.model,
            samples,
            self.layout,
            self.batch_layout,
            vocab_size=self.inputs.vocab_size,
            temperature=self.config.loss.temperature,
            rows_at_once=self.config.data.global_batch_size,
        )

    def _set_loss(self, loss: PolicyLoss) -> None:
        self.objective = replace(self.objective, loss=loss)

    def _initial_logprobs(self) -> list[np.ndarray] | None:
        samples = self.inputs.train.samples
        if not reads_initial_logprobs(self.config):
            return None
        return initial_logprobs(
            samples,
            self.inputs.fingerprint(),
            checkpoints=self.folder.checkpoints,
            resumed_from=self.inputs.resume.parent if self.inputs.resume else None,
            score=lambda: self.score(samples),
        )

    def _writers(self) -> tuple[list[MetricsWriter], list[MetricsWriter]]:
        """Those of steps and those of evaluations."""
        if self.layout.rank != 0:
            return [], []
        # a run that begins anew in a used folder keeps nothing of what was there
        folder, step = self.folder, self.progress.step if self.inputs.resume else -1
        tensorboard = TensorBoardWriter(folder.tensorboard, step)
        return (
            [JsonlWriter(folder.metrics, step), tensorboard],
            [JsonlWriter(folder.evaluations, step), tensorboard],
        )

    def _describe(self) -> None:
        inputs, say = self.inputs, self.console.say
        say(f"run folder {self.folder.path}  (tensorboard --logdir {self.folder.tensorboard})")
        say(f"training data: {inputs.train.summary()}")
        if inputs.valid is not None:
            say(f"held-out data: {inputs.valid.summary()}")
        skipped = inputs.train.skipped + (inputs.valid.skipped if inputs.valid else [])
        if skipped and self.layout.rank == 0:
            path = self.folder.write_list("skipped_rows.txt", [str(problem) for problem in skipped])
            for problem in skipped[:20]:
                say(f"  {problem}")
            say(f"all skipped rows are listed in {path}")
        if self.columns.all_advantages_zero:
            estimator = self.config.advantage.advantage_estimator
            say(f"warning: every advantage is 0 under {estimator}: the rewards teach nothing")
        if self.layout.rank == 0:
            self.folder.write_config(self.config)
        if inputs.resume is not None:
            say(f"going on from {inputs.resume}, step {self.progress.step} of {inputs.train_iters}")
