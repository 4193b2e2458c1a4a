"""Process groups, seeds, and the layer that lets Megatron-Core run without a GPU.

Importing this package prepares Megatron-Core for this machine; every module that imports `megatron.core`
imports this package first.
"""

import logging
import warnings

from megatron_rl.distributed.cpu import enable_cpu

# Megatron-Core announces on import what is not installed, and that its GPTModel and its own asynchronous save
# are to be replaced one day; torch, that a CUDA toolkit has no device. None of it is for the user of a run.
warnings.filterwarnings("ignore", category=UserWarning, module=r"megatron\.core")
for _name in (
    "megatron.core.models.gpt.gpt_model",
    "megatron.core.dist_checkpointing.strategies.torch",
    "torch.utils.cpp_extension",
):
    logging.getLogger(_name).setLevel(logging.ERROR)

enable_cpu()

from megatron_rl.distributed.adam import use_group_step_adamw  # noqa: E402  imports Megatron-Core

use_group_step_adamw()
