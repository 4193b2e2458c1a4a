"""Rules between keys. A rule is a function whose parameters are the keys it reads.

It runs when all of those hold valid values, and yields `(key, message)` for each thing that is wrong, so that
one broken key does not hide another rule's finding. `world_size` is the number of processes of the run.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

from megatron_rl.advantages import ESTIMATORS
from megatron_rl.losses import LossOptionError, options_of, policy_loss_class, policy_loss_names
from megatron_rl.losses.off_policy import Rejection

Findings = Iterator[tuple[str, str]]
RULES: list[Callable[..., Findings]] = []


def rule(check: Callable[..., Findings]) -> Callable[..., Findings]:
    RULES.append(check)
    return check


def findings(values: dict[str, Any]) -> Findings:
    """What all rules find in the valid `values`; rules that read a missing key are passed over."""
    for check in RULES:
        keys = inspect.signature(check).parameters
        if all(key in values for key in keys):
            yield from check(**{key: values[key] for key in keys})
    if "loss_mode" in values:
        yield from _loss_options(values)


def _loss_options(values: dict[str, Any]) -> Findings:
    """The chosen loss exists, has its options, and no other loss's option is given."""
    try:
        chosen = policy_loss_class(values["loss_mode"])
    except ValueError as error:
        yield "loss_mode", str(error)
        return
    own = {f.metadata["flag"]: f.name for f in options_of(chosen)}
    owners: dict[str, list[str]] = {}
    for name in policy_loss_names():
        for f in options_of(policy_loss_class(name)):
            owners.setdefault(f.metadata["flag"], []).append(name)
    for flag, losses in owners.items():
        if flag not in own and values.get(flag) is not None:
            yield flag, f"is an option of {', '.join(losses)}, not of loss_mode {chosen.name}"
    try:
        chosen(**{name: values[flag] for flag, name in own.items() if values.get(flag) is not None})
    except LossOptionError as error:
        for flag, _, message in error.problems:
            required = f"{message} by loss_mode {chosen.name}" if message == "is required" else message
            yield flag, required


def _loss_has(loss_mode: str, what: str) -> bool:
    """Whether the loss exists and has a property."""
    return loss_mode in policy_loss_names() and bool(getattr(policy_loss_class(loss_mode), what))


@rule
def heads_fit_width(hidden_size, num_attention_heads, kv_channels) -> Findings:
    if kv_channels is None and hidden_size % num_attention_heads:
        yield "num_attention_heads", f"must divide hidden_size {hidden_size}, or give kv_channels"


@rule
def query_groups_divide_heads(num_attention_heads, num_query_groups) -> Findings:
    if num_query_groups and num_attention_heads % num_query_groups:
        yield "num_query_groups", f"must divide num_attention_heads {num_attention_heads}"


@rule
def head_width_is_even(hidden_size, num_attention_heads, kv_channels) -> Findings:
    width = kv_channels or hidden_size // num_attention_heads
    if width % 2:
        yield "kv_channels", f"rotary positions need heads of an even width, not {width}"


@rule
def transformer_engine_has_a_kernel(transformer_impl, bf16, hidden_size, num_attention_heads, kv_channels) -> Findings:
    if transformer_impl != "transformer_engine":
        return
    width = kv_channels or hidden_size // num_attention_heads
    if not bf16:
        yield "transformer_impl", "transformer_engine attends to packed sequences in bfloat16 only: give --bf16"
    if width % 8:
        yield "transformer_impl", f"transformer_engine needs heads of a multiple of 8, not {width}"


@rule
def tensor_parallel_divides_model(
    tensor_model_parallel_size, num_attention_heads, num_query_groups, hidden_size, ffn_hidden_size
) -> Findings:
    tp = tensor_model_parallel_size
    groups = num_query_groups or num_attention_heads
    if groups % tp:
        what = "num_query_groups" if num_query_groups else "num_attention_heads"
        yield "tensor_model_parallel_size", f"must divide {what} {groups}"
    if (ffn_hidden_size or 4 * hidden_size) % tp:
        yield "tensor_model_parallel_size", f"must divide ffn_hidden_size {ffn_hidden_size or 4 * hidden_size}"


@rule
def sequence_parallel_needs_tensor_parallel(sequence_parallel, tensor_model_parallel_size) -> Findings:
    if sequence_parallel and tensor_model_parallel_size == 1:
        yield "sequence_parallel", "needs tensor_model_parallel_size above 1"


@rule
def experts_need_sequence_parallel(num_experts, tensor_model_parallel_size, sequence_parallel) -> Findings:
    if num_experts and tensor_model_parallel_size > 1 and not sequence_parallel:
        yield "sequence_parallel", "mixture of experts with tensor_model_parallel_size above 1 needs it"


@rule
def stages_divide_layers(num_layers, pipeline_model_parallel_size, virtual_pipeline_model_parallel_size) -> Findings:
    pp, vpp = pipeline_model_parallel_size, virtual_pipeline_model_parallel_size or 1
    if vpp > 1 and pp == 1:
        yield "virtual_pipeline_model_parallel_size", "needs pipeline_model_parallel_size above 1"
    if num_layers % (pp * vpp):
        yield "num_layers", f"must be a multiple of pipeline stages x model chunks = {pp * vpp}"


@rule
def expert_parallel_fits(
    num_experts, moe_router_topk, moe_ffn_hidden_size, expert_model_parallel_size, expert_tensor_parallel_size
) -> Findings:
    ep, etp = expert_model_parallel_size, expert_tensor_parallel_size
    if num_experts is None:
        if ep > 1:
            yield "expert_model_parallel_size", "needs num_experts"
        if etp > 1:
            yield "expert_tensor_parallel_size", "needs num_experts"
        if moe_router_topk is not None:
            yield "moe_router_topk", "needs num_experts"
        if moe_ffn_hidden_size is not None:
            yield "moe_ffn_hidden_size", "needs num_experts"
        return
    if num_experts % ep:
        yield "expert_model_parallel_size", f"must divide num_experts {num_experts}"
    if (moe_router_topk or 2) > num_experts:
        yield "moe_router_topk", f"must not exceed num_experts {num_experts}"


@rule
def expert_tensor_parallel_divides_experts(
    num_experts, moe_ffn_hidden_size, ffn_hidden_size, hidden_size, expert_tensor_parallel_size
) -> Findings:
    width = moe_ffn_hidden_size or ffn_hidden_size or 4 * hidden_size
    if num_experts is not None and width % expert_tensor_parallel_size:
        yield "expert_tensor_parallel_size", f"must divide the experts' width {width}"


@rule
def world_holds_layout(
    world_size,
    tensor_model_parallel_size,
    pipeline_model_parallel_size,
    context_parallel_size,
    expert_model_parallel_size,
    expert_tensor_parallel_size,
) -> Findings:
    tp, pp, cp = tensor_model_parallel_size, pipeline_model_parallel_size, context_parallel_size
    if world_size % (tp * pp * cp):
        yield (
            "tensor_model_parallel_size",
            f"tensor {tp} x pipeline {pp} x context {cp} = {tp * pp * cp} must divide the {world_size} processes",
        )
    expert = expert_tensor_parallel_size * expert_model_parallel_size * pp
    if expert > pp and world_size % expert:
        yield (
            "expert_model_parallel_size",
            f"expert tensor {expert_tensor_parallel_size} x expert {expert_model_parallel_size} x pipeline {pp} "
            f"= {expert} must divide the {world_size} processes",
        )


@rule
def distributed_optimizer_overlap(use_distributed_optimizer, overlap_param_gather, overlap_grad_reduce) -> Findings:
    if overlap_param_gather and not use_distributed_optimizer:
        yield "overlap_param_gather", "needs use_distributed_optimizer"
    if overlap_param_gather and not overlap_grad_reduce:
        yield "overlap_param_gather", "needs overlap_grad_reduce"


@rule
def one_answer_to_long_rows(truncate, drop_long) -> Findings:
    if truncate and drop_long:
        yield "drop_long", "and truncate exclude each other"


@rule
def micro_batch_holds_longest_row(
    max_tokens_per_microbatch, seq_length, context_parallel_size, tensor_model_parallel_size
) -> Findings:
    divisor = sequence_divisor(tensor_model_parallel_size, context_parallel_size)
    needed = math.ceil(seq_length / divisor) * divisor
    if max_tokens_per_microbatch is not None and max_tokens_per_microbatch < needed:
        padded = f", padded to a multiple of {divisor}" if needed != seq_length else ""
        yield "max_tokens_per_microbatch", f"must hold one row of seq_length {seq_length}{padded}: at least {needed}"


@rule
def aggregation_has_its_constant(loss_agg_mode, loss_scale_factor) -> Findings:
    if loss_agg_mode == "seq-mean-token-sum-norm" and loss_scale_factor is None:
        yield "loss_scale_factor", "is required by seq-mean-token-sum-norm (usually the longest response's length)"
    if loss_agg_mode != "seq-mean-token-sum-norm" and loss_scale_factor is not None:
        yield "loss_scale_factor", "is used by seq-mean-token-sum-norm only"


@rule
def old_policy_suits_the_loss(loss_mode, old_logprobs) -> Findings:
    if _loss_has(loss_mode, "old_is_sampler") and old_logprobs != "data":
        yield "old_logprobs", f"must be data: {loss_mode} compares with the sampler's log-probabilities, in the rows"


@rule
def estimator_has_its_tau(loss_mode, advantage_estimator, advantage_tau, dro_level) -> Findings:
    needs = ESTIMATORS[advantage_estimator].reads in ("tau", "logprobs") and _loss_has(loss_mode, "uses_advantages")
    own = loss_mode == "dro" and dro_level == "sequence"
    if needs and advantage_tau is None and not own:
        yield "advantage_tau", f"is required by advantage_estimator {advantage_estimator}"
    if not needs and advantage_tau is not None:
        yield "advantage_tau", "is used by the estimators soft, batch-soft and dro only"


@rule
def value_model_has_a_use(loss_mode, advantage_estimator, value_model, value_lr, value_loss_coef) -> Findings:
    estimates = _loss_has(loss_mode, "uses_advantages") and ESTIMATORS[advantage_estimator].reads == "state_values"
    needs = estimates or _loss_has(loss_mode, "uses_state_values")
    who = f"advantage_estimator {advantage_estimator}" if estimates else f"loss_mode {loss_mode}"
    if needs and value_model is None:
        yield "value_model", f"is required by {who}: scalar, head or network"
    if not needs and value_model is not None:
        yield "value_model", "is used by loss_mode dro_v and the estimators value and gae only"
    if estimates and advantage_estimator == "gae" and value_model == "scalar":
        yield "value_model", "gae needs a value of each token: head or network"
    if value_lr is not None and value_model not in ("scalar", "network"):
        yield "value_lr", "is used by a value_model of scalar or network only; a head learns with the policy"
    if value_loss_coef is not None and not estimates:
        yield "value_loss_coef", "is used by the estimators value and gae only"


@rule
def what_is_given_plays_a_part(
    loss_mode, advantage_estimator, normalize_advantages, gae_gamma, gae_lambda, kl_coef, kl_kind
) -> Findings:
    estimator = advantage_estimator if _loss_has(loss_mode, "uses_advantages") else None
    if gae_gamma != 1 and estimator not in ("gae", "reinforce++"):
        yield "gae_gamma", "is used by the estimators gae and reinforce++ only"
    if gae_lambda != 0.95 and estimator != "gae":
        yield "gae_lambda", "is used by the estimator gae only"
    if normalize_advantages and estimator is None:
        yield "normalize_advantages", f"plays no part in loss_mode {loss_mode}, which takes no advantages"
    if kl_kind != "k3" and not kl_coef:
        yield "kl_kind", "needs a kl_coef above 0"


@rule
def charges_have_two_policies(reward_kl_coef, old_logprobs) -> Findings:
    if reward_kl_coef and old_logprobs == "current":
        yield "reward_kl_coef", "needs old log-probabilities before the first step: old_logprobs data or initial"


@rule
def rollout_weights_have_bounds(loss_mode, rollout_is, rollout_is_threshold, rollout_is_lower, bypass_loss) -> Findings:
    if rollout_is == "none" and rollout_is_lower is not None:
        yield "rollout_is_lower", "needs rollout_is token or sequence"
    if rollout_is == "none" and rollout_is_threshold != 2:
        yield "rollout_is_threshold", "needs rollout_is token or sequence"
    if rollout_is_lower is not None and rollout_is_lower >= rollout_is_threshold:
        yield "rollout_is_lower", f"must be below rollout_is_threshold {rollout_is_threshold}"
    if rollout_is != "none" and loss_mode == "bypass_mode" and bypass_loss != "reinforce":
        yield (
            "rollout_is",
            "plays no part in bypass_mode's ppo_clip, whose ratio corrects; give bypass_loss reinforce",
        )


@rule
def rejections_can_be_read(rollout_rs) -> Findings:
    for text in rollout_rs:
        try:
            Rejection.parse(text)
        except ValueError as error:
            yield "rollout_rs", str(error)


@rule
def one_length_of_training(train_iters, epochs) -> Findings:
    if (train_iters is None) == (epochs is None):
        yield "train_iters", "give either train_iters or epochs"


@rule
def learning_rate_falls_as_it_can(lr, min_lr, lr_decay_style, lr_decay_iters, lr_warmup_iters, train_iters) -> Findings:
    if lr_decay_style == "constant":
        for name, value in (("min_lr", min_lr), ("lr_decay_iters", lr_decay_iters)):
            if value is not None:
                yield name, "needs an lr_decay_style of linear or cosine"
        return
    if min_lr is not None and min_lr > lr:
        yield "min_lr", f"must not exceed lr {lr}"
    steps = lr_decay_iters or train_iters
    if steps is not None and lr_warmup_iters >= steps:
        yield "lr_warmup_iters", f"must be below the {steps} steps of the schedule"


@rule
def recompute_has_its_granularity(recompute_granularity, recompute_num_layers) -> Findings:
    if recompute_num_layers is not None and recompute_granularity != "full":
        yield "recompute_num_layers", "needs recompute_granularity full"


@rule
def evaluation_has_rows(eval_interval, valid_data) -> Findings:
    if eval_interval is not None and not valid_data:
        yield "eval_interval", "needs valid_data"


@rule
def tokens_have_a_vocabulary(tokenizer_model, vocab_size) -> Findings:
    if tokenizer_model is None and vocab_size is None:
        yield "tokenizer_model", "is required for text rows; for rows of token ids give vocab_size instead"


def sequence_divisor(tensor_parallel: int, context_parallel: int) -> int:
    """What the padded length of each packed sequence is a multiple of.

    Each context-parallel rank takes two chunks of every sequence, and with sequence parallelism its tokens
    are spread over the tensor-parallel ranks.
    """
    return context_parallel * math.lcm(2, tensor_parallel) if context_parallel > 1 else 1
