"""The GPT model of a run, as Megatron-Core's chunks of this rank, wrapped for data parallelism."""

from __future__ import annotations

import importlib.util
from typing import Literal

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig

from megatron_rl.config import RunConfig
from megatron_rl.models.initial_weights import initialize_weights
from megatron_rl.models.layer_specs import decoder_spec, use_transformer_engine
from megatron_rl.models.rotary import PackedRotaryEmbedding
from megatron_rl.models.value_head import ValueHead


def padded_vocab_size(vocab_size: int, divisible_by: int, tensor_parallel: int) -> int:
    """`vocab_size` rounded up so that each tensor-parallel rank holds a multiple of `divisible_by` columns."""
    multiple = divisible_by * tensor_parallel
    return -(-vocab_size // multiple) * multiple


def transformer_config(config: RunConfig) -> TransformerConfig:
    """Megatron-Core's configuration of the model and its schedule."""
    model, parallel = config.model, config.parallel
    pipeline = parallel.pipeline_model_parallel_size > 1
    interleaved = parallel.virtual_pipeline_model_parallel_size is not None
    cuda = torch.cuda.is_available()
    transformer_engine = use_transformer_engine(model)
    experts = {}
    if model.num_experts is not None:
        experts = {
            "num_moe_experts": model.num_experts,
            "moe_router_topk": model.moe_router_topk or 2,
            "moe_ffn_hidden_size": model.moe_ffn_hidden_size or model.ffn_hidden_size,
            "moe_router_load_balancing_type": "none",
            "moe_grouped_gemm": transformer_engine,
        }
    recompute = {}
    if parallel.recompute_granularity == "full":
        recompute = {"recompute_method": "uniform", "recompute_num_layers": parallel.recompute_num_layers or 1}
    return TransformerConfig(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=model.num_query_groups,
        kv_channels=model.kv_channels,
        ffn_hidden_size=model.ffn_hidden_size,
        transformer_impl="transformer_engine" if transformer_engine else "local",
        normalization="RMSNorm",
        layernorm_epsilon=model.norm_epsilon,
        qk_layernorm=model.qk_layernorm,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        add_qkv_bias=model.add_qkv_bias,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bf16=model.bf16,
        params_dtype=torch.bfloat16 if model.bf16 else torch.float32,
        pipeline_dtype=torch.bfloat16 if model.bf16 else torch.float32,
        tensor_model_parallel_size=parallel.tensor_model_parallel_size,
        sequence_parallel=parallel.sequence_parallel,
        pipeline_model_parallel_size=parallel.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=parallel.virtual_pipeline_model_parallel_size,
        context_parallel_size=parallel.context_parallel_size,
        expert_model_parallel_size=parallel.expert_model_parallel_size,
        expert_tensor_parallel_size=parallel.expert_tensor_parallel_size,
        recompute_granularity=parallel.recompute_granularity,
        **recompute,
        **experts,
        # weights come from initialize_weights, on the CPU first and the same on every layout
        perform_initialization=False,
        calculate_per_token_loss=True,
        # packed micro-batches differ in length; Megatron-Core ties this to the all-to-all dispatcher
        variable_seq_lengths=pipeline,
        moe_token_dispatcher_type="alltoall",
        # gloo reads a buffer after the send returns, so stages must keep it
        deallocate_pipeline_outputs=cuda,
        # interleaving with batched sends gives wrong numbers where stages are two
        overlap_p2p_comm=interleaved,
        batch_p2p_comm=not interleaved,
        # fused kernels of Apex and of TransformerEngine
        gradient_accumulation_fusion=cuda and importlib.util.find_spec("fused_weight_gradient_mlp_cuda") is not None,
        apply_rope_fusion=transformer_engine,
        persist_layer_norm=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
    )


Role = Literal["policy", "policy with value head", "value network"]


def build_model(
    config: RunConfig, vocab_size: int, device: torch.device, role: Role = "policy"
) -> list[DistributedDataParallel]:
    """This rank's model chunks (one, or one for each virtual stage) with initial weights.

    Their forward pass gives the last stage's hidden states; `LastStage` makes logits and values of them.
    """
    megatron_config = transformer_config(config)
    virtual = config.parallel.virtual_pipeline_model_parallel_size
    chunks = [
        _build_chunk(config, megatron_config, vocab_size, stage, role)
        for stage in (range(virtual) if virtual else [None])
    ]
    for chunk in chunks:
        initialize_weights(
            chunk,
            seed=config.training.seed,
            std=config.model.init_method_std,
            num_layers=config.model.num_layers,
            vocab_size=vocab_size,
        )
        chunk.to(device)
    ddp_config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=config.parallel.overlap_grad_reduce,
        overlap_param_gather=config.parallel.overlap_param_gather,
        use_distributed_optimizer=config.parallel.use_distributed_optimizer,
    )
    wrapped = [
        DistributedDataParallel(megatron_config, ddp_config, chunk, disable_bucketing=i > 0)
        for i, chunk in enumerate(chunks)
    ]
    megatron_config.finalize_model_grads_func = finalize_model_grads
    if config.parallel.overlap_grad_reduce:
        no_sync = [chunk.no_sync for chunk in wrapped]
        megatron_config.no_sync_func = no_sync if len(no_sync) > 1 else no_sync[0]
    if config.parallel.overlap_param_gather:
        param_sync = [chunk.start_param_sync for chunk in wrapped]
        megatron_config.param_sync_func = param_sync if len(param_sync) > 1 else param_sync[0]
    return wrapped


def _build_chunk(
    config: RunConfig, megatron_config: TransformerConfig, vocab_size: int, vp_stage: int | None, role: Role
) -> GPTModel:
    model, parallel = config.model, config.parallel
    transformer_engine = megatron_config.transformer_impl == "transformer_engine"
    tied = not model.untie_embeddings_and_output_weights and role != "value network"
    chunk = GPTModel(
        config=megatron_config,
        transformer_layer_spec=decoder_spec(megatron_config, transformer_engine, vp_stage),
        vocab_size=padded_vocab_size(
            vocab_size, model.make_vocab_size_divisible_by, parallel.tensor_model_parallel_size
        ),
        max_sequence_length=config.data.seq_length,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage),
        parallel_output=True,
        share_embeddings_and_output_weights=tied,
        position_embedding_type="rope",
        rotary_base=model.rotary_base,
        vp_stage=vp_stage,
    )
    if not transformer_engine:
        chunk.rotary_pos_emb = PackedRotaryEmbedding(megatron_config.kv_channels, model.rotary_base)
    if chunk.post_process and role == "policy with value head":
        chunk.value_head = ValueHead(megatron_config)
    if chunk.post_process and role == "value network":
        chunk.output_layer = ValueHead(megatron_config)
    if model.bf16:
        for parameter in chunk.parameters():
            parameter.data = parameter.data.bfloat16()
    return chunk
