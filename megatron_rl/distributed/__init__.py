"""Process groups, seeds, and the layer that lets Megatron-Core run without a GPU.

Importing this package prepares Megatron-Core for this machine; every module that imports `megatron.core`
imports this package first.
"""

import logging
import warnings

from megatron_rl.distributed.cpu import enable_cpu

# What the libraries say about themselves is not for the user of a run: that something optional is not
# installed, that a function of torch which Megatron-Core calls has a new name, that a default was chosen.
for _category, _module, _message in (
    (UserWarning, r"megatron\.core", ""),
    (UserWarning, r"torch\.distributed\.checkpoint", r"torch\.distributed is disabled|The argument order of load"),
    (UserWarning, "", r"The \.grad attribute of a Tensor that is not a leaf"),
    (FutureWarning, "", r".*(all_gather_into_tensor|reduce_scatter_tensor|deprecating ShardedTensor)"),
):
    warnings.filterwarnings("ignore", _message, _category, _module)
for _name in (
    "megatron.core.distributed.distributed_data_parallel",
    "megatron.core.models.gpt.gpt_model",
    "megatron.core.dist_checkpointing.strategies.torch",
    "torch.utils.cpp_extension",
):
    logging.getLogger(_name).setLevel(logging.ERROR)

enable_cpu()

from megatron_rl.distributed.adam import use_group_step_adamw  # noqa: E402  imports Megatron-Core

use_group_step_adamw()
