"""Policy losses and their aggregation: tensor mathematics that knows nothing of Megatron.

Importing this package registers the losses and does not import torch.
"""

from megatron_rl.losses.aggregation import AGG_MODES, GlobalBatchInfo, agg_loss, token_weights, weighted_sum
from megatron_rl.losses.agro import AGRO
from megatron_rl.losses.batch import PolicyBatch
from megatron_rl.losses.bypass_mode import BypassMode
from megatron_rl.losses.cispo import CISPO
from megatron_rl.losses.clip_cov import ClipCov
from megatron_rl.losses.dppo import DPPOKullbackLeibler, DPPOTotalVariation
from megatron_rl.losses.dro import DRO
from megatron_rl.losses.dro_v import DROV
from megatron_rl.losses.geo_mean import GeoMean
from megatron_rl.losses.gpg import GPG
from megatron_rl.losses.gspo import GSPO
from megatron_rl.losses.importance_sampling import ImportanceSampling
from megatron_rl.losses.kl import KL_KINDS, kl_estimate
from megatron_rl.losses.kl_cov import KLCov
from megatron_rl.losses.options import LossOptionError, options_of
from megatron_rl.losses.padded import compute_policy_loss, prepare_policy_loss
from megatron_rl.losses.policy_loss import PolicyLoss, TokenLoss
from megatron_rl.losses.registry import (
    build_policy_loss,
    policy_loss_class,
    policy_loss_names,
    register_policy_loss,
)
from megatron_rl.losses.sapo import SAPO
from megatron_rl.losses.sft import SFT
from megatron_rl.losses.vanilla import Vanilla

__all__ = [
    "AGG_MODES",
    "AGRO",
    "BypassMode",
    "CISPO",
    "ClipCov",
    "DPPOKullbackLeibler",
    "DPPOTotalVariation",
    "DRO",
    "DROV",
    "GPG",
    "GSPO",
    "GeoMean",
    "GlobalBatchInfo",
    "ImportanceSampling",
    "KLCov",
    "KL_KINDS",
    "LossOptionError",
    "PolicyBatch",
    "PolicyLoss",
    "SAPO",
    "SFT",
    "TokenLoss",
    "Vanilla",
    "agg_loss",
    "build_policy_loss",
    "compute_policy_loss",
    "kl_estimate",
    "options_of",
    "policy_loss_class",
    "policy_loss_names",
    "prepare_policy_loss",
    "register_policy_loss",
    "token_weights",
    "weighted_sum",
]
