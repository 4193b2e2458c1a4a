"""The schema of a run: one typed section for each part, the source of YAML keys and command-line flags alike.

Keys are unique over all sections, so that a flag needs no prefix. Where Megatron-LM has a name, it is used.
Rules between keys are in `rules`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from megatron_rl.advantages import ESTIMATORS
from megatron_rl.losses import AGG_MODES, KL_KINDS, PolicyLoss, options_of, policy_loss_class, policy_loss_names

Count = Annotated[int, Field(ge=1)]
AtLeastTwo = Annotated[int, Field(ge=2)]
CountOrZero = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


class Section(BaseModel):
    """Base of the sections: strict types, no unknown keys, read-only once made."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def key(default: Any, help: str) -> Any:
    return Field(default=default, description=help)


class ModelSection(Section):
    """The GPT model: RMSNorm, SwiGLU, rotary positions, grouped-query attention; dense or mixture of experts."""

    num_layers: Count = key(..., "transformer layers")
    hidden_size: Count = key(..., "width of the hidden state")
    num_attention_heads: Count = key(..., "query heads")
    num_query_groups: Count | None = key(None, "key and value heads (default: as many as query heads)")
    kv_channels: Count | None = key(None, "width of a head (default: hidden_size / num_attention_heads)")
    ffn_hidden_size: Count | None = key(None, "width of the feed-forward layer (default: 4 x hidden_size)")
    vocab_size: Count | None = key(None, "tokens in the vocabulary (default: the tokenizer's)")
    make_vocab_size_divisible_by: Count = key(
        128, "pad each tensor-parallel rank's share of the vocabulary to a multiple"
    )
    untie_embeddings_and_output_weights: bool = key(False, "an output layer of its own instead of the embedding")
    rotary_base: Count = key(10000, "base of the rotary frequencies")
    norm_epsilon: Positive = key(1e-5, "epsilon of RMSNorm")
    qk_layernorm: bool = key(False, "normalise queries and keys")
    add_qkv_bias: bool = key(False, "bias in the query, key and value projection")
    init_method_std: Positive = key(0.02, "standard deviation of initial weights")
    num_experts: Count | None = key(None, "experts in each layer (default: a dense model)")
    moe_router_topk: Count | None = key(None, "experts a token is sent to (default: 2)")
    moe_ffn_hidden_size: Count | None = key(None, "width of an expert (default: ffn_hidden_size)")
    bf16: bool = key(False, "weights and activations in bfloat16, optimizer in fp32")
    transformer_impl: Literal["auto", "transformer_engine", "local"] = key(
        "auto", "layers: TransformerEngine's where it can be used, or plain torch"
    )


class ParallelSection(Section):
    """How the model and the batch are spread over ranks."""

    tensor_model_parallel_size: Count = key(1, "ranks that share each layer's matrices")
    sequence_parallel: bool = key(False, "shard activations between the matrices over the tensor-parallel ranks")
    pipeline_model_parallel_size: Count = key(1, "pipeline stages")
    virtual_pipeline_model_parallel_size: AtLeastTwo | None = key(
        None, "model chunks in each stage (interleaved schedule)"
    )
    context_parallel_size: Count = key(1, "ranks that share each sequence")
    expert_model_parallel_size: Count = key(1, "ranks that share the experts")
    expert_tensor_parallel_size: Count = key(1, "ranks that share each expert's matrices")
    use_distributed_optimizer: bool = key(True, "shard optimizer state over data-parallel ranks")
    overlap_grad_reduce: bool = key(False, "reduce gradients during the backward pass")
    overlap_param_gather: bool = key(False, "gather updated weights during the forward pass")
    recompute_granularity: Literal["full", "selective"] | None = key(
        None, "activations to make again in the backward pass"
    )
    recompute_num_layers: Count | None = key(None, "layers between kept activations, with full recompute (default: 1)")
    distributed_timeout_minutes: Count = key(30, "a collective that takes longer ends the run")


class DataSection(Section):
    """Rows, tokens and batches."""

    train_data: Annotated[list[str], Field(min_length=1)] = key(..., "JSONL or Parquet files to train on")
    valid_data: list[str] = key([], "JSONL or Parquet files to evaluate on")
    data_format: Literal[
        "auto",
        "plain",
        "trl",
        "messages",
        "nested",
        "verl",
        "slime",
        "areal",
        "nemo_rl",
        "skyrl",
        "tinker",
        "sglang",
        "vllm",
    ] = key("auto", "whose rows they are; auto tells by the fields of each file's first row")
    chat_template: str | None = key(
        None, "Jinja file that makes text of messages (default: a line `role: content` each)"
    )
    tokenizer_model: str | None = key(None, "SentencePiece .model file; not needed for rows of token ids")
    prepend_bos: bool = key(False, "begin each text prompt with the tokenizer's beginning-of-sequence token")
    append_eos: bool = key(True, "end each text completion with the tokenizer's end-of-sequence token")
    seq_length: Count = key(2048, "longest row, prompt and completion together, in tokens")
    truncate: bool = key(False, "cut completions of longer rows at seq_length, and count them")
    drop_long: bool = key(False, "leave longer rows out, and count them")
    skip_bad_rows: bool = key(False, "list and leave out rows that cannot be read, instead of ending")
    shuffle: bool = key(True, "a new order of the rows each epoch, by the seed")
    global_batch_size: Count = key(64, "rows of an optimizer step, over all ranks")
    max_tokens_per_microbatch: Count | None = key(None, "tokens of a packed micro-batch (default: seq_length)")


class LossSection(Section):
    """What is optimised. Options of each loss carry its name in their help."""

    loss_mode: str = key("dro", "policy loss: " + ", ".join(policy_loss_names()))
    loss_agg_mode: Literal[tuple(AGG_MODES)] | None = key(
        None, "how token losses become one (default: as in the loss's paper): " + ", ".join(AGG_MODES)
    )
    loss_scale_factor: Positive | None = key(None, "the constant of seq-mean-token-sum-norm")
    old_logprobs: Literal["data", "initial", "current"] = key(
        "initial", "the old policy: the rows' log-probabilities, the starting weights, or those of each step"
    )
    ref_logprobs: Literal["data", "initial"] = key(
        "initial", "the reference policy: ref_logprobs in the rows, or the starting weights"
    )
    kl_coef: NonNegative = key(0.0, "strength of the divergence from the reference policy, beside the loss")
    kl_kind: Literal[KL_KINDS] = key("k3", "its estimate, with + with the gradient of k2: " + ", ".join(KL_KINDS))
    entropy_coef: NonNegative = key(0.0, "strength of the entropy bonus")
    temperature: Positive = key(1.0, "divides the logits: the temperature that the completions were sampled at")

    def policy_loss(self) -> PolicyLoss:
        """The chosen loss with its options. Raises ValueError (`LossOptionError`) if an option is wrong."""
        loss = policy_loss_class(self.loss_mode)
        given = {f.name: getattr(self, f.metadata["flag"]) for f in options_of(loss)}
        return loss(**{name: value for name, value in given.items() if value is not None})


def _loss_option_keys() -> dict[str, Any]:
    """A key for each option of each loss. Its type is left to the option's own rule: one place decides."""
    shown: dict[str, dict[str, list[str]]] = {}
    for name in policy_loss_names():
        for f in options_of(policy_loss_class(name)):
            default = "required" if f.metadata["required"] else f"default: {f.default}"
            hidden = f.default is None and not f.metadata["required"]
            help = f.metadata["help"] if hidden else f"{f.metadata['help']} ({default})"
            shown.setdefault(f.metadata["flag"], {}).setdefault(help, []).append(name)
    return {
        flag: (Any, key(None, "; ".join(f"{', '.join(losses)}: {help}" for help, losses in helps.items())))
        for flag, helps in shown.items()
    }


LossSection = create_model("LossSection", __base__=LossSection, __doc__=LossSection.__doc__, **_loss_option_keys())


class AdvantageSection(Section):
    """How rewards become advantages."""

    advantage_estimator: Literal[tuple(ESTIMATORS)] = key(
        "batch-mean", "; ".join(f"{name}: {estimator.help}" for name, estimator in ESTIMATORS.items())
    )
    normalize_advantages: bool = key(
        False, "divide advantages by their standard deviation (multiplies beta's effect by it)"
    )
    advantage_tau: Positive | None = key(
        None, "tau of soft, batch-soft and dro (default: the loss's own, if it has one)"
    )
    gae_gamma: Share = key(1.0, "discount of rewards to come, of gae and reinforce++")
    gae_lambda: Share = key(0.95, "decay of gae's residuals")
    reward_kl_coef: NonNegative = key(
        0.0, "charge tokens for log old - log reference, times this, before advantages are estimated"
    )
    value_model: Literal["scalar", "head", "network"] | None = key(
        None, "of dro_v, value and gae: one number, a head on the policy, or a network of its own"
    )
    value_lr: Positive | None = key(None, "learning rate of a scalar (default: 0.1) or a network (default: lr)")
    value_loss_coef: Positive | None = key(None, "strength of the value loss of value and gae (default: 1)")


class OffPolicySection(Section):
    """Correction for completions that another policy than the old one drew (their rollout_logprobs)."""

    rollout_is: Literal["none", "token", "sequence"] = key(
        "none", "weigh token losses by old over sampler: per token, or the product over a completion"
    )
    rollout_is_threshold: Positive = key(2.0, "weights above it are cut to it (TIS)")
    rollout_is_lower: Positive | None = key(
        None, "if given, weights outside [this, rollout_is_threshold] are 0 instead (IcePop)"
    )
    rollout_rs: list[str] = key(
        [],
        "leave out what is too far off (MIS), each as SCOPE_KIND:UPPER or SCOPE_k1:LOWER:UPPER, with scope token, "
        "sequence, sum or max and kind k1 (ratio), k2 or k3",
    )


class OptimizerSection(Section):
    """AdamW and its schedule."""

    lr: Positive = key(1e-6, "highest learning rate")
    min_lr: NonNegative | None = key(None, "learning rate at the end of the decay (default: 0)")
    lr_decay_style: Literal["constant", "linear", "cosine"] = key("constant", "shape of the decay")
    lr_warmup_iters: CountOrZero = key(0, "steps over which the learning rate rises from 0")
    lr_decay_iters: Count | None = key(None, "steps over which it falls to min_lr (default: all)")
    weight_decay: NonNegative = key(0.0, "AdamW's weight decay")
    adam_beta1: Decay = key(0.9, "decay of the first moment")
    adam_beta2: Decay = key(0.95, "decay of the second moment")
    adam_eps: Positive = key(1e-8, "added to the root of the second moment")
    clip_grad: NonNegative = key(1.0, "largest gradient norm; 0 for no clipping")


class TrainingSection(Section):
    """How long, and when to look."""

    train_iters: Count | None = key(None, "optimizer steps (or give epochs)")
    epochs: Positive | None = key(None, "passes over the training rows, rounded up to whole steps")
    seed: CountOrZero = key(1234, "of initial weights and of the order of rows")
    eval_interval: Count | None = key(None, "steps between evaluations on valid_data (default: only before and after)")
    max_skipped_steps: Count = key(5, "end the run after so many steps in a row without an update")


class CheckpointSection(Section):
    """Where a run begins and what it leaves behind."""

    run_dir: str | None = key(
        None, "folder of the run (default: runs/LOSS-TIME-seedSEED); given again, the run goes on"
    )
    pretrained_checkpoint: str | None = key(
        None, "checkpoint folder whose weights the run starts from (default: random weights)"
    )
    save: str | None = key(None, "folder of checkpoints (default: checkpoints in the run folder)")
    load: str | None = key(
        None, "checkpoint folder of another run to go on from, until this run has checkpoints of its own"
    )
    save_interval: Count | None = key(None, "steps between checkpoints (default: only at the end)")


class LoggingSection(Section):
    """What is shown and written while training."""

    log_interval: Count = key(1, "steps between lines on the console when it is no terminal")
    tensorboard_dir: str | None = key(None, "folder of TensorBoard events (default: tensorboard in the run folder)")


class RunConfig(BaseModel):
    """A whole, checked configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: ModelSection
    parallel: ParallelSection
    data: DataSection
    loss: LossSection
    advantage: AdvantageSection
    off_policy: OffPolicySection
    optimizer: OptimizerSection
    training: TrainingSection
    checkpoint: CheckpointSection
    logging: LoggingSection


SECTIONS: dict[str, type[Section]] = {name: field.annotation for name, field in RunConfig.model_fields.items()}
