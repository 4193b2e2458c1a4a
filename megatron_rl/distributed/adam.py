"""AdamW for where neither TransformerEngine nor Apex is installed.

Megatron-Core then falls back to `torch.optim.AdamW`, whose step counter for each parameter its distributed
optimizer cannot checkpoint. This one keeps the state layout of FusedAdam (the step in the parameter group,
`exp_avg` and `exp_avg_sq` for each parameter), so that checkpoints are alike with and without a GPU.
"""

from __future__ import annotations

import math

import torch


class GroupStepAdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov and Hutter, arXiv 1711.05101) with the state layout of FusedAdam."""

    def __init__(
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0.0,
        adam_w_mode=True,
        bias_correction=True,
        capturable=False,
    ):
        if not (adam_w_mode and bias_correction) or capturable:
            raise ValueError("adam_w_mode=False, bias_correction=False and capturable=True are not supported")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "bias_correction": True}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure=None) -> None:
        if closure is not None:
            raise ValueError("closures are not supported")
        for group in self.param_groups:
            if not group["params"]:
                continue
            group["step"] = group.get("step", 0) + 1
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                self._update(group, params)

    def _update(self, group: dict, params: list[torch.Tensor]) -> None:
        (beta1, beta2), lr, decay, step = group["betas"], group["lr"], group["weight_decay"], group["step"]
        for p in params:
            if not self.state[p]:
                self.state[p] = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        grads = [p.grad for p in params]
        first = [self.state[p]["exp_avg"] for p in params]
        second = [self.state[p]["exp_avg_sq"] for p in params]
        if decay:
            torch._foreach_mul_(params, 1 - lr * decay)
        torch._foreach_lerp_(first, grads, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, grads, grads, 1 - beta2)
        scale = torch._foreach_sqrt(second)
        torch._foreach_div_(scale, math.sqrt(1 - beta2**step))
        torch._foreach_add_(scale, group["eps"])
        torch._foreach_addcdiv_(params, first, scale, -lr / (1 - beta1**step))


def use_group_step_adamw() -> bool:
    """Make it Megatron-Core's Adam where there is no FusedAdam. Returns whether it was needed."""
    import megatron.core.optimizer as optimizer
    import megatron.core.optimizer.distrib_optimizer as distrib_optimizer

    if distrib_optimizer.HAVE_APEX_OR_TE:
        return False
    optimizer.Adam = distrib_optimizer.Adam = GroupStepAdamW
    optimizer.USING_PYTORCH_OPTIMIZER = False
    # these say which state layout the optimizer has
    distrib_optimizer.HAVE_APEX_OR_TE = distrib_optimizer.USING_APEX_OPTIMIZER = True
    return True
