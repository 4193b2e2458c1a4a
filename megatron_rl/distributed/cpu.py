"""Megatron-Core on a machine without CUDA: the same code path, with gloo.

Megatron-Core asks for "cuda" by name in many places. Where there is no CUDA, `enable_cpu` answers those
requests with the CPU. It changes torch and Megatron-Core only in the ways listed here, and nothing at all
where CUDA exists:

- requests for a CUDA device (`device="cuda"`, `Tensor.cuda()`, pinned memory) get the CPU: `CudaToCpu`;
- the `torch.cuda` functions that are called unconditionally have stand-ins: `cuda_stand_ins`;
- Megatron's random state tracker reads torch's CPU generator;
- fusing by torch.compile is off, or a C++ compiler would be started for each small function;
- the expert dispatcher's split sizes become numpy, which it does only for CUDA tensors.

`torch.cuda.is_available()` and `Tensor.is_cuda` keep telling the truth.
"""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from megatron_rl.distributed.cuda_stand_ins import CPU, cuda_stand_ins

_Tensor = torch.Tensor


class CudaToCpu(TorchFunctionMode):
    """Redirect requests for a CUDA device to the CPU, in the thread that enters it."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if "device" in kwargs and _names_cuda(kwargs["device"]):
            kwargs["device"] = CPU
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        if func is _Tensor.to and len(args) > 1 and _names_cuda(args[1]):
            args = (args[0], CPU, *args[2:])
        elif func in (_Tensor.cuda, _Tensor.pin_memory):
            return args[0]
        elif func is _Tensor.record_stream:
            return None
        elif func is _Tensor.type and len(args) == 1 and not kwargs:
            # Megatron's optimizers choose parameters by the name 'torch.cuda.FloatTensor'
            name = func(args[0])
            return name.replace("torch.", "torch.cuda.", 1) if _called_by_megatron() else name
        return func(*args, **kwargs)


def _names_cuda(device: Any) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    if isinstance(device, str):
        return device.split(":")[0] == "cuda"
    return type(device) is int  # a bare number means an accelerator


def _called_by_megatron() -> bool:
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_name == "__torch_function__":
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__", "").startswith("megatron.")


def enable_cpu() -> bool:
    """Prepare Megatron-Core for a machine without CUDA; call before the first `import megatron.core`.

    Returns:
        whether the layer is active: False, and nothing was touched, where CUDA exists.

    Raises:
        RuntimeError: `megatron.core` was imported before.
    """
    if torch.cuda.is_available():
        return False
    if getattr(torch.cuda, "megatron_rl_stand_ins", False):
        return True
    if "megatron.core" in sys.modules:
        raise RuntimeError("enable_cpu() must be called before the first import of megatron.core")
    for name, stand_in in cuda_stand_ins().items():
        setattr(torch.cuda, name, stand_in)
    torch.cuda.megatron_rl_stand_ins = True
    mode = CudaToCpu()
    mode.__enter__()
    _keep_in_backward_and_threads(mode)
    _without_jit_fusion()
    _random_state_of_cpu()
    _expert_splits_as_numpy()
    return True


def _keep_in_backward_and_threads(mode: CudaToCpu) -> None:
    """Modes are left inside the autograd engine (where recompute runs) and in new threads: enter there again."""
    engine = torch.autograd._engine_run_backward
    thread_run = threading.Thread.run

    def run_backward(*args, **kwargs):
        with mode:
            return engine(*args, **kwargs)

    def run(self):
        with mode:
            thread_run(self)

    torch.autograd._engine_run_backward = run_backward
    # graph.py and __init__.py hold the name they imported
    torch.autograd.graph._engine_run_backward = run_backward
    threading.Thread.run = run


def _without_jit_fusion() -> None:
    compile = torch.compile
    torch.compile = lambda model=None, **_: model if model is not None else (lambda function: function)
    try:
        import megatron.core.jit
    finally:
        torch.compile = compile
    megatron.core.jit.disable_jit_fuser()


def _random_state_of_cpu() -> None:
    import megatron.core.tensor_parallel.random as random

    random._get_cuda_rng_state = lambda device="cuda", clone=False, graph_safe=False: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, device=-1, graph_safe=False: torch.set_rng_state(state)
    # it warns that the CPU generator moved while the "CUDA" one was forked: here they are one
    logging.getLogger(random.__name__).addFilter(
        lambda record: "CPU RNG state changed within GPU RNG context" not in record.getMessage()
    )


def _expert_splits_as_numpy() -> None:
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    def maybe_move_tensor_to_cpu(tensor, as_numpy=False, record_stream=False):
        return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor

    moe_utils.maybe_move_tensor_to_cpu = maybe_move_tensor_to_cpu
    token_dispatcher.maybe_move_tensor_to_cpu = maybe_move_tensor_to_cpu
