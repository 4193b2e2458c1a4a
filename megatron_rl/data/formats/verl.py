"""verl's rows: dumped rollouts as padded token ids, or its prompts with responses and rewards added to them."""

from __future__ import annotations

from megatron_rl.data.formats.fields import (
    as_list,
    has,
    has_any,
    optional,
    per_token,
    required,
    text_or_messages,
    whole_row,
)
from megatron_rl.data.formats.full_length import same_length
from megatron_rl.data.formats.messages import reply
from megatron_rl.data.formats.nested import REWARDS, completions
from megatron_rl.data.formats.plain_row import Given, PlainRow, Row, SourceFormat, TokenIds
from megatron_rl.data.formats.token_sums import summed
from megatron_rl.data.row_error import RowError

# `label` is left out: in verl's rows it may be the right answer
REWARD = ("score", "reward")
GROUP = ("uid", "group")


def detect(row: Row) -> bool:
    # rows of other formats may carry the name of their source
    prompt_alone = has(row, "data_source", "prompt") and not has_any(row, "completion", "output")
    return has(row, "prompts", "responses") or prompt_alone


def plain_rows(row: Row) -> list[PlainRow]:
    return _rollout(row) if has(row, "prompts") else _prompt_with_responses(row)


def _rollout(row: Row) -> list[PlainRow]:
    prompts, responses = required(row, "prompts"), required(row, "responses")
    for given in (prompts, responses):
        as_list(given, "must be a list of whole numbers")
    mask = optional(row, "response_mask", "loss_mask")
    lists = per_token(row) | {
        "loss_mask": mask,
        "old_logprobs": optional(row, "old_log_probs", "old_logprobs"),
        "rollout_logprobs": optional(row, "rollout_log_probs", "rollout_logprobs"),
        "ref_logprobs": optional(row, "ref_log_prob", "ref_logprobs"),
    }
    lists["reward"] = summed(optional(row, *REWARD, "token_level_scores"), responses)
    for given in lists.values():
        if isinstance(given.value, list):
            same_length(given, responses)
    in_prompt, in_response = _places(row, prompts, responses, mask)
    kept = {name: _at(given, in_response) if isinstance(given.value, list) else given for name, given in lists.items()}
    prompt, completion = TokenIds(*_at(prompts, in_prompt)), TokenIds(*_at(responses, in_response))
    return [PlainRow(prompt, completion, **kept, **whole_row(row, GROUP))]


def _places(row: Row, prompts: Given, responses: Given, mask: Given) -> tuple[list[int], list[int]]:
    """Where the prompt and the response have tokens and no padding."""
    attention = optional(row, "attention_mask")
    in_prompt, in_response = range(len(prompts.value)), range(len(responses.value))
    if attention.value is not None:
        same_length(attention, Given("prompts and responses", prompts.value + responses.value))
        start = len(prompts.value)
        return (
            [i for i in in_prompt if attention.value[i]],
            [i for i in in_response if attention.value[start + i]],
        )
    if mask.value is not None:
        same_length(mask, responses)
        # masked tokens at the end have no effect, be they padding or not; those within are read by later ones
        trained = [i for i in in_response if mask.value[i]]
        in_response = range(trained[-1] + 1 if trained else 0)
    return list(in_prompt), list(in_response)


def _at(given: Given, places: list[int]) -> Given:
    return Given(given.field, [given.value[i] for i in places])


def _prompt_with_responses(row: Row) -> list[PlainRow]:
    response = optional(row, "responses", "response")
    if response.value is None:
        raise RowError(
            response.field,
            "is missing: a prompt alone has nothing to learn from; draw completions, score them, and add the "
            "columns response and reward",
        )
    if isinstance(response.value, list) and response.field == "responses":
        return completions(row, optional(row, *REWARD, *REWARDS), GROUP)
    prompt = text_or_messages(required(row, "prompt"))
    return [PlainRow(prompt, reply(response), optional(row, *REWARD), **whole_row(row, GROUP))]


VERL = SourceFormat("verl", ("prompts", "responses", "response_mask", "score"), detect, plain_rows)
