"""AdamW by Megatron-Core, with an update that can be refused before anything has changed."""

from __future__ import annotations

import torch
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler, get_canonical_lr_for_logging

from megatron_rl.config import RunConfig


class Optimizer:
    """Optimizer and learning-rate schedule of a run.

    megatron: Megatron-Core's optimizer. scheduler: its schedule; both are saved in checkpoints.
    updated: whether any update was made; until then there are no moments to save.
    max_lr, min_lr: the ends of the schedule; `lr` goes before the configured one.
    """

    def __init__(self, config: RunConfig, model: list[torch.nn.Module], train_iters: int, *, lr: float | None = None):
        section = config.optimizer
        self._clip_grad = section.clip_grad
        self.updated = False
        self.max_lr = lr or section.lr
        self.min_lr = min(section.min_lr or 0.0, self.max_lr)
        self.megatron = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=self.max_lr,
                min_lr=self.min_lr,
                weight_decay=section.weight_decay,
                adam_beta1=section.adam_beta1,
                adam_beta2=section.adam_beta2,
                adam_eps=section.adam_eps,
                clip_grad=section.clip_grad,
                bf16=config.model.bf16,
                params_dtype=torch.bfloat16 if config.model.bf16 else torch.float32,
                use_distributed_optimizer=config.parallel.use_distributed_optimizer,
                overlap_param_gather=config.parallel.overlap_param_gather,
            ),
            model,
            use_gloo_process_groups=False,
        )
        # a constant rate has no decay that a long warm-up could overrun
        decay_steps = max(section.lr_decay_iters or train_iters, section.lr_warmup_iters + 1)
        self.scheduler = OptimizerParamScheduler(
            self.megatron,
            init_lr=0.0,
            max_lr=self.max_lr,
            min_lr=self.min_lr,
            lr_warmup_steps=section.lr_warmup_iters,
            lr_decay_steps=decay_steps,
            lr_decay_style=section.lr_decay_style,
            start_wd=section.weight_decay,
            end_wd=section.weight_decay,
            wd_incr_steps=decay_steps,
            wd_incr_style="constant",
            use_checkpoint_opt_param_scheduler=False,
            override_opt_param_scheduler=True,
        )

    @property
    def lr(self) -> float:
        """The learning rate of the last update."""
        return get_canonical_lr_for_logging(self.megatron.param_groups)

    def zero_grad(self, model: list[torch.nn.Module]) -> None:
        """Forget the gradients of the step before."""
        for chunk in model:
            chunk.zero_grad_buffer()
        self.megatron.zero_grad()

    @torch.no_grad()
    def grad_norm(self) -> float:
        """Norm of the gradient over all parameters of all ranks; hands gradients to the optimizer."""
        self.megatron.prepare_grads()
        return float(self.megatron.get_grad_norm())

    @torch.no_grad()
    def step(self, grad_norm: float) -> None:
        """Clip by the norm that `grad_norm` gave, advance the schedule, and update the weights."""
        if self._clip_grad > 0:
            for part in self.megatron.chained_optimizers:
                parameters = [] if getattr(part, "is_stub_optimizer", False) else part.get_parameters()
                if parameters:
                    clip_grad_by_total_norm_fp32(parameters, max_norm=self._clip_grad, total_norm=grad_norm)
        self.updated = True
        self.scheduler.step(1)
        self.megatron.step_with_ready_grads()
