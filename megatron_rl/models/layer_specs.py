"""Which modules the transformer layers are made of."""

from __future__ import annotations

import importlib.util

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig

from megatron_rl.config.sections import ModelSection
from megatron_rl.models.core_attention import TorchCoreAttention


class TorchNorm:
    """Builder of torch's RMSNorm in which sequence parallelism works.

    Megatron-Core's own refuses it; all it takes is the mark by which gradients are summed over the
    tensor-parallel ranks.
    """

    def __new__(cls, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **unused) -> torch.nn.Module:
        norm = torch.nn.RMSNorm(hidden_size, eps=eps)
        norm.weight.sequence_parallel = config.sequence_parallel
        return norm


def use_transformer_engine(model: ModelSection) -> bool:
    """Resolve `transformer_impl`.

    "auto" takes TransformerEngine where it is installed, there is CUDA, and its attention has a kernel for packed
    sequences: in bfloat16, with heads of a multiple of 8.
    """
    if model.transformer_impl != "auto":
        return model.transformer_impl == "transformer_engine"
    head_width = model.kv_channels or model.hidden_size // model.num_attention_heads
    installed = importlib.util.find_spec("transformer_engine") is not None
    return torch.cuda.is_available() and installed and model.bf16 and head_width % 8 == 0


def decoder_spec(
    config: TransformerConfig, transformer_engine: bool, vp_stage: int | None = None
) -> TransformerBlockSubmodules:
    """The layers of this pipeline stage (and model chunk `vp_stage`), dense or mixture of experts."""
    block = get_gpt_decoder_block_spec(
        config, use_transformer_engine=transformer_engine, normalization="RMSNorm", vp_stage=vp_stage
    )
    if transformer_engine:
        return block
    for layer in block.layer_specs:
        parts, attention = layer.submodules, layer.submodules.self_attention.submodules
        for owner, name in (
            (parts, "input_layernorm"),
            (parts, "pre_mlp_layernorm"),
            (attention, "q_layernorm"),
            (attention, "k_layernorm"),
        ):
            if getattr(owner, name) not in (None, IdentityOp):
                setattr(owner, name, TorchNorm)
        attention.core_attention = TorchCoreAttention
    block.layer_norm = TorchNorm
    return block
