"""Policy losses and their aggregation: tensor mathematics that knows nothing of Megatron.

Importing this package registers the losses and does not import torch.
"""

from megatron_rl.losses.aggregation import AGG_MODES, GlobalBatchInfo, agg_loss, token_weights, weighted_sum
from megatron_rl.losses.batch import PolicyBatch
from megatron_rl.losses.dro import DRO
from megatron_rl.losses.options import LossOptionError, options_of
from megatron_rl.losses.padded import compute_policy_loss
from megatron_rl.losses.policy_loss import PolicyLoss, TokenLoss
from megatron_rl.losses.registry import (
    build_policy_loss,
    policy_loss_class,
    policy_loss_names,
    register_policy_loss,
)
from megatron_rl.losses.sft import SFT
from megatron_rl.losses.vanilla import Vanilla

__all__ = [
    "AGG_MODES",
    "DRO",
    "GlobalBatchInfo",
    "LossOptionError",
    "PolicyBatch",
    "PolicyLoss",
    "SFT",
    "TokenLoss",
    "Vanilla",
    "agg_loss",
    "build_policy_loss",
    "compute_policy_loss",
    "options_of",
    "policy_loss_class",
    "policy_loss_names",
    "register_policy_loss",
    "token_weights",
    "weighted_sum",
]
