"""Each source's rows: one small file a format, found out and by name, and each thing that can be wrong with it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from megatron_rl.config import UserError, load_config
from megatron_rl.config.sections import DataSection
from megatron_rl.data.chat import DEFAULT_TEMPLATE
from megatron_rl.data.formats import AUTO, FORMATS, format_named, format_of
from megatron_rl.data.read import read_files
from megatron_rl.data.rows import RowFormat
from megatron_rl.data.tokenizer import SentencePieceTokenizer
from megatron_rl.quickstart.reversal import write_tokenizer
from tests.harness import REPO

FILES = Path(__file__).parent / "files"
OF_TOKENS = ("plain", "slime", "areal", "nemo_rl", "skyrl", "tinker", "verl", "sglang", "vllm")
OF_WORDS = ("messages", "nested", "trl")
GROUPS = {"plain": "g", "slime": "7", "verl": "g"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    write_tokenizer(path)
    return SentencePieceTokenizer(str(path))


def row_format(tokenizer=None, **options):
    given = {"seq_length": 64, "long_rows": "error", "needs_reward": True, "needs_old_logprobs": False} | options
    return RowFormat(tokenizer=tokenizer, vocab_size=10, **given)


def read(tmp_path, *rows, tokenizer=None, **options):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return read_files([str(path)], row_format(tokenizer, **options)).samples


def problem(tmp_path, *rows, **options):
    with pytest.raises(UserError) as caught:
        read(tmp_path, *rows, **options)
    (found,) = caught.value.problems
    return str(found).partition("rows.jsonl:")[2]


def first_row(name):
    return json.loads((FILES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[0])


def changed(name, path, value):
    """The first row of a file with one field changed, or removed by None."""
    row = first_row(name)
    *parents, last = path.split(".")
    within = row
    for parent in parents:
        within = within[parent]
    within[last] = value
    if value is None:
        del within[last]
    return row


def test_each_format_has_a_file_and_a_name_in_the_configuration():
    names = [source.name for source in FORMATS]
    assert sorted(names) == sorted(OF_TOKENS + OF_WORDS) == sorted(path.stem for path in FILES.glob("*.jsonl"))
    assert sorted(get_args(DataSection.model_fields["data_format"].annotation)) == sorted([AUTO, *names])


@pytest.mark.parametrize("name", OF_TOKENS + OF_WORDS)
def test_each_format_is_found_out(name):
    assert format_of(first_row(name)).name == name
    assert format_named(name).name == name


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("name", OF_TOKENS)
def test_the_same_completion_in_each_format_of_token_ids(name, by_name):
    form = row_format(data_format=name if by_name else AUTO, needs_rollout_logprobs=True, needs_old_logprobs=True)
    (sample,) = read_files([str(FILES / f"{name}.jsonl")], form).samples
    assert sample.token_ids.tolist() == [1, 2, 3, 4, 5]
    assert sample.prompt_length == 2
    assert sample.loss_mask.tolist() == [True, False, True]
    assert sample.rollout_logprobs.tolist() == [-0.5, 0, -0.25]
    told_apart = name in ("verl", "nemo_rl")
    assert sample.old_logprobs.tolist() == ([-0.75, 0, -0.125] if told_apart else [-0.5, 0, -0.25])
    assert sample.reward == 1
    assert sample.group == GROUPS.get(name, "[1, 2]")
    assert (sample.advantages is None) == (name != "tinker")
    assert np.isnan(sample.baseline_reward)


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("messages", [("user: ab\nassistant: a\nuser: cd\nassistant:", "dc", 1)]),
        ("nested", [("ab>", "ba", 1), ("ab>", "ab", 0), ("cd>", "dc", 1), ("cd>", "cc", 0)]),
        ("trl", [("ab>", "ba", 1), ("user: ab\nassistant:", "bb", 0)]),
    ],
)
def test_formats_of_words(tokenizer, name, expected, by_name):
    form = row_format(tokenizer, data_format=name if by_name else AUTO)
    samples = read_files([str(FILES / f"{name}.jsonl")], form).samples
    assert len(samples) == len(expected)
    for sample, (prompt, completion, reward) in zip(samples, expected, strict=True):
        wanted = tokenizer.encode_prompt(prompt), tokenizer.encode_completion(completion)
        assert sample.token_ids.tolist() == wanted[0] + wanted[1]
        assert sample.prompt_length == len(wanted[0])
        assert sample.reward == reward
        assert sample.group == prompt
        assert sample.loss_mask.all()
        assert sample.old_logprobs is None and sample.rollout_logprobs is None


def test_tinkers_entries_belong_to_targets_and_areals_to_tokens(tmp_path):
    tokens, logprobs, mask = [7, 1, 4, 2, 8, 6], [-0.125, -0.25, -0.5, -1, -2, -4], [0, 0, 1, 1, 0, 1]
    areal = {"input_ids": tokens, "logprobs": logprobs, "loss_mask": mask, "rewards": 1}
    shifted = {"target_tokens": tokens[1:], "logprobs": logprobs[1:], "weights": mask[1:]}
    tinker = {"model_input": tokens[:-1], "loss_fn_inputs": shifted, "reward": 1}
    (one,), (other,) = read(tmp_path, areal), read(tmp_path, tinker)
    assert one.token_ids.tolist() == other.token_ids.tolist() == tokens
    assert one.prompt_length == other.prompt_length == 2
    assert one.rollout_logprobs.tolist() == other.rollout_logprobs.tolist() == [-0.5, -1, 0, -4]
    assert one.loss_mask.tolist() == other.loss_mask.tolist() == [True, True, False, True]


def test_tinkers_advantages_belong_to_targets():
    (sample,) = read_files([str(FILES / "tinker.jsonl")], row_format(needs_advantages=True)).samples
    assert sample.advantages.tolist() == [2, 0, 4]


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        # rules of one format
        (changed("tinker", "model_input", [1, 2, 9, 4]), ["loss_fn_inputs.target_tokens: must be model_input one"]),
        (changed("tinker", "model_input", [1, 2, 3]), ["model_input: has 3 tokens for 4 target_tokens"]),
        (changed("tinker", "model_input", "abc"), ["model_input = 'abc': must be a list"]),
        (changed("tinker", "loss_fn_inputs.logprobs", [-1]), ["loss_fn_inputs.logprobs: has 1 values for 4"]),
        (changed("tinker", "loss_fn_inputs.mask", None), ["loss_fn_inputs.mask or loss_fn_inputs.weights: is missing"]),
        (changed("tinker", "loss_fn_inputs.weights", [0, 1, 0, 1]), ["loss_fn_inputs.mask and", "mean the same"]),
        (changed("tinker", "loss_fn_inputs.target_tokens", None), ["loss_fn_inputs.target_tokens: is missing"]),
        (changed("areal", "loss_mask", [0] * 5), ["loss_mask: masks every token"]),
        (changed("areal", "loss_mask", [1] * 5), ["loss_mask: trains on the first token"]),
        (changed("areal", "loss_mask", [0, 0, 1, 0.5, 1]), ["loss_mask = 0.5: must hold 0 and 1 only"]),
        (changed("areal", "loss_mask", [0, 1]), ["loss_mask: has 2 values for 5 input_ids"]),
        (changed("areal", "logprobs", [-1] * 3), ["logprobs: has 3 values for 5 input_ids"]),
        (changed("nemo_rl", "prev_logprobs", [-1]), ["prev_logprobs: has 1 values for 5 input_ids"]),
        (changed("nemo_rl", "token_mask", None), ["token_mask: is missing"]),
        (changed("nemo_rl", "sample_mask", 2), ["sample_mask = 2: must be 0 or 1"]),
        (changed("slime", "response_length", 5), ["response_length = 5: must be a whole number from 1 to 4"]),
        (changed("slime", "response_length", 0), ["response_length = 0: must be a whole number from 1 to 4"]),
        (
            changed("slime", "reward", {"acc": 1, "score": 2}),
            ["reward: is an object with acc, score: write the number"],
        ),
        (changed("slime", "rollout_log_probs", [-1]), ["rollout_log_probs: has 1 values for 3 response tokens"]),
        (changed("skyrl", "rewards", [1, 2]), ["rewards: has 2 values for 3 response_ids"]),
        (changed("skyrl", "rewards", [1, "2", 0]), ["rewards =", "list of numbers to sum"]),
        (changed("skyrl", "loss_masks", [1]), ["loss_masks: has 1 values for 3 response tokens"]),
        (changed("verl", "old_log_probs", [-1] * 3), ["old_log_probs: has 3 values for 4 responses"]),
        (changed("verl", "attention_mask", [1] * 4), ["attention_mask: has 4 values for 8 prompts and responses"]),
        (changed("verl", "score", 1), ["score and token_level_scores: mean the same"]),
        (
            changed("sglang", "meta_info", {"id": "x"}),
            ["meta_info.output_token_logprobs: is missing", "return_logprob"],
        ),
        (changed("sglang", "meta_info.output_token_logprobs", [3]), ["logprobs[0] = 3: must be a log-probability"]),
        (changed("sglang", "input_ids", None), ["prompt_token_ids or input_ids or prompt: is missing"]),
        (changed("vllm", "logprobs", [-1]), ["logprobs: has 1 values for 3 response tokens"]),
        (changed("vllm", "logprobs", [-1, -1, {"4": {"logprob": -1}}]), ["logprobs[2] =", "of the drawn token 5"]),
        (changed("nested", "rewards", [1]), ["rewards: has 1 values for 2 responses"]),
        (changed("nested", "rewards", [1, 1]), ["responses[0].reward and rewards[0]: mean the same"]),
        (changed("nested", "responses", []), ["responses: is empty"]),
        (changed("nested", "responses", "ab"), ["responses = 'ab': must be a list of completions"]),
        (
            changed("nested", "responses", [{"txt": "a", "reward": 1}]),
            ["responses[0].text", "is missing; is it misspelt"],
        ),
        (changed("nested", "responses", ["a", "b"]), ["rewards[0]: is missing"]),
        (changed("messages", "messages", [{"role": "user", "content": "a"}]), ["messages: has no assistant turn"]),
        (changed("messages", "messages", ["a"]), ["messages[0] = 'a': must be a message with role and content"]),
        (changed("messages", "messages", [{"role": "assistant"}]), ["messages[0].content = None: must be text"]),
        (
            changed("messages", "logprobs", {"content": [{"logprob": -1}]}),
            ["logprobs.content[].logprob: needs token ids"],
        ),
        (changed("trl", "completion", [{"role": "user", "content": "a"}]), ["completion: must hold one assistant"]),
        # rules of all
        (
            changed("slime", "rollout_log_probs", [-1, -1, 0.5]),
            ["rollout_log_probs = 0.5: must be finite and not above"],
        ),
        (changed("slime", "rollout_log_probs", [-1, -1, float("nan")]), ["rollout_log_probs = nan: must be finite"]),
        (changed("slime", "rollout_log_probs", [-1, -1, -float("inf")]), ["rollout_log_probs = -inf: must be finite"]),
        (changed("slime", "rollout_log_probs", [-1, -1, -1e300]), ["rollout_log_probs = -1e+300: must be finite"]),
        (changed("slime", "rollout_log_probs", [-1, -1, -(10**400)]), ["rollout_log_probs: must be a list of finite"]),
        (changed("plain", "advantages", [1, 2, float("inf")]), ["advantages = inf: must be finite"]),
        (changed("plain", "advantages", [1, 2]), ["advantages: has 2 values for 3 response tokens"]),
        (changed("plain", "advantages", "1"), ["advantages = '1': must be a finite number"]),
        (changed("plain", "baseline_reward", "1"), ["baseline_reward = '1': must be a finite number"]),
        (changed("plain", "ref_logprobs", [1, 1, 1]), ["ref_logprobs = 1: must be finite and not above 0"]),
        (changed("plain", "reward", 10**400), ["reward =", "must be a finite number"]),
        (changed("plain", "group", [1]), ["group = [1]: must be text or a whole number"]),
        (changed("slime", "tokens", [1, 2, 3, 4, 10]), ["tokens = 10: has a token id outside the vocabulary of 10"]),
        (changed("trl", "advantages", [1.0]), ["advantages: needs token ids"]),
        ({"prompt": "ab", "completion": "b", "reward": 1, "advantages": [1.0]}, ["advantages: needs token ids"]),
        (
            {"promt": "ab", "reward": 1},
            ["row: fits no known format", "promt, reward; is it misspelt as 'promt'?", "slime"],
        ),
        ({"promt": "ab", "completion": "b"}, ["is missing; is it misspelt as 'promt'?"]),
        ({}, ["row: fits no known format; its fields are none"]),
    ],
)
def test_each_mistake_is_named(tmp_path, tokenizer, row, parts):
    found = problem(tmp_path, row, tokenizer=tokenizer)
    assert found.startswith("1: ")
    for part in parts:
        assert part in found, found


def with_junk(value, junk):
    """Copies of a value in which one thing at any depth is replaced by `junk`."""
    yield junk
    if isinstance(value, dict):
        for key, part in value.items():
            yield from (value | {key: other} for other in with_junk(part, junk))
    if isinstance(value, list):
        for i, part in enumerate(value):
            yield from (value[:i] + [other] + value[i + 1 :] for other in with_junk(part, junk))


VERL_PROMPT = {
    "data_source": "gsm8k",
    "prompt": [{"role": "user", "content": "ab"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "4"},
    "extra_info": {"index": 0},
}
MORE_ROWS = [
    ("verl", changed("verl", "attention_mask", None)),
    ("verl", VERL_PROMPT | {"responses": ["ba", "bb"], "rewards": [1, 0]}),
    ("verl", VERL_PROMPT | {"response": "ba", "score": 1}),
    ("messages", first_row("messages") | {"logprobs": {"content": [{"logprob": -1, "token_id": 4}]}}),
    ("nested", {"prompt_token_ids": [1], "responses": [[2], [3]], "rewards": [1, 0]}),
]


@pytest.mark.parametrize("junk", [None, 3, -1, 0.5, "x", "", [], {}, [None], [{}], ["x"], {"x": 1}, True, float("nan")])
@pytest.mark.parametrize(("name", "row"), [(n, first_row(n)) for n in OF_TOKENS + OF_WORDS] + MORE_ROWS)
def test_whatever_stands_in_a_row_is_read_or_named(tmp_path, tokenizer, name, row, junk):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(r) for r in [row, *with_junk(row, junk)]), encoding="utf-8")
    for data_format in (name, AUTO):
        form = row_format(tokenizer, data_format=data_format, temperature=1.0)
        data = read_files([str(path)], form, skip_bad_rows=True)
        assert data.skipped
        for sample in data.samples:
            assert len(sample.loss_mask) == sample.completion_length >= 1
            assert sample.rollout_logprobs is None or np.isfinite(sample.rollout_logprobs).all()


@pytest.mark.parametrize("reward", ["score", "rewards"])
def test_verls_prompts_alone_teach_nothing(tmp_path, tokenizer, reward):
    found = problem(tmp_path, VERL_PROMPT, tokenizer=tokenizer)
    assert "responses or response: is missing: a prompt alone has nothing to learn from" in found
    more = {"response": "ba", "score": 1} if reward == "score" else {"responses": ["ba", "bb"], "rewards": [1, 0]}
    samples = read(tmp_path, VERL_PROMPT | more, tokenizer=tokenizer)
    assert [s.reward for s in samples] == ([1] if reward == "score" else [1, 0])
    assert {s.group for s in samples} == {"user: ab\nassistant:"}


def test_verls_padding_is_trimmed_by_the_response_mask_alone(tmp_path):
    row = changed("verl", "attention_mask", None) | {"prompts": [1, 2]}
    (sample,) = read(tmp_path, row)
    assert sample.token_ids.tolist() == [1, 2, 3, 4, 5]
    assert sample.rollout_logprobs.tolist() == [-0.5, 0, -0.25]


@pytest.mark.parametrize("row", [changed("nemo_rl", "sample_mask", 0), changed("slime", "remove_sample", True)])
def test_a_row_that_its_sampler_put_aside_is_masked_and_keeps_its_reward(tmp_path, row):
    (sample,) = read(tmp_path, row)
    assert not sample.loss_mask.any()
    assert sample.reward == 1


def test_masked_positions_may_hold_anything(tmp_path):
    row = changed("plain", "rollout_logprobs", [-0.5, float("nan"), -0.25]) | {
        "ref_logprobs": [-1, None, -2],
        "advantages": [1, float("inf"), -1],
    }
    (sample,) = read(tmp_path, row)
    assert sample.rollout_logprobs.tolist() == [-0.5, 0, -0.25]
    assert sample.ref_logprobs.tolist() == [-1, 0, -2]
    assert sample.advantages.tolist() == [1, 0, -1]


def test_the_old_policy_is_taken_for_the_sampler_where_it_alone_is_given(tmp_path):
    row = changed("plain", "rollout_logprobs", None) | {"old_logprobs": [0, -9, -0.25]}
    (sample,) = read(tmp_path, row, needs_rollout_logprobs=True)
    assert sample.rollout_logprobs.tolist() == sample.old_logprobs.tolist() == [0, 0, -0.25]


def test_areals_reward_may_be_a_list_of_one(tmp_path):
    assert read(tmp_path, changed("areal", "rewards", [0.5]))[0].reward == 0.5
    assert "rewards = [1, 2]: must be a finite number" in problem(tmp_path, changed("areal", "rewards", [1, 2]))


def test_our_own_rows_hold_everything(tmp_path):
    row = first_row("plain") | {"old_logprobs": [-1, -1, -2], "baseline_reward": 0.5, "advantages": 3}
    needs = {name: True for name in ("needs_old_logprobs", "needs_rollout_logprobs", "needs_baseline_reward")}
    (sample,) = read(tmp_path, row, needs_advantages=True, **needs)
    assert sample.old_logprobs.tolist() == [-1, 0, -2]
    assert sample.rollout_logprobs.tolist() == [-0.5, 0, -0.25]
    assert sample.baseline_reward == 0.5
    assert sample.advantages.tolist() == [3, 0, 3]


@pytest.mark.parametrize(
    ("need", "name", "removed", "field"),
    [
        ("needs_rollout_logprobs", "slime", "rollout_log_probs", "rollout_log_probs or rollout_logprobs"),
        ("needs_old_logprobs", "plain", "rollout_logprobs", "old_logprobs"),
        ("needs_ref_logprobs", "plain", "group", "ref_logprobs"),
        ("needs_advantages", "plain", "group", "advantages"),
        ("needs_baseline_reward", "plain", "group", "baseline_reward"),
        ("needs_reward", "nemo_rl", "total_reward", "total_reward or reward"),
    ],
)
def test_what_is_needed_is_named_when_missing_and_not_asked_for_in_evaluation(tmp_path, need, name, removed, field):
    row = changed(name, removed, None)
    assert problem(tmp_path, row, **{need: True}).startswith(f"1: {field}: is missing")
    path = tmp_path / "rows.jsonl"
    assert read_files([str(path)], row_format(**{need: True}).for_evaluation()).samples


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"temperature": 0.7}, "temperature"),
        ({"sampling_params": {"temperature": 0.7, "top_p": 1}}, "sampling_params.temperature"),
        ({"meta_info": {"temperature": 0.7}}, "meta_info.temperature"),
    ],
)
def test_another_sampling_temperature_is_an_error(tmp_path, extra, field):
    row = first_row("slime") | extra
    found = problem(tmp_path, row, temperature=1.0)
    assert found.startswith(f"1: {field} = 0.7: must be 1.0")
    assert "--temperature" in found
    assert len(read(tmp_path, row, temperature=0.7)) == len(read(tmp_path, row)) == 1
    assert row_format(temperature=1.0).for_evaluation().temperature is None


def test_log_probabilities_of_a_chat_with_token_ids(tmp_path, tokenizer):
    entries = [{"logprob": -0.5, "token_id": 4}, {"logprob": -0.25, "token_id": 5}]
    row = first_row("messages") | {"logprobs": {"content": entries}}
    (one,) = read(tmp_path, row, tokenizer=tokenizer)
    without = [{"logprob": entry["logprob"]} for entry in entries]
    (other,) = read(tmp_path, row | {"logprobs": {"content": without}, "token_ids": [4, 5]}, tokenizer=tokenizer)
    for sample in (one, other):
        assert sample.token_ids[sample.prompt_length :].tolist() == [4, 5]
        assert sample.rollout_logprobs.tolist() == [-0.5, -0.25]


def test_a_prompt_in_words_may_have_an_output_in_token_ids(tmp_path, tokenizer):
    row = changed("sglang", "input_ids", None) | {"prompt": "ab>"}
    (sample,) = read(tmp_path, row, tokenizer=tokenizer)
    assert sample.token_ids.tolist() == [*tokenizer.encode_prompt("ab>"), 3, 4, 5]
    assert sample.rollout_logprobs.tolist() == [-0.5, 0, -0.25]


def test_a_file_has_one_format(tmp_path):
    found = problem(tmp_path, first_row("slime"), first_row("areal"))
    assert found.startswith("2: row: is no slime row like the first of its file; its fields are input_ids")


def test_a_format_by_name_asks_for_its_fields(tmp_path):
    assert problem(tmp_path, first_row("areal"), data_format="slime").startswith("1: tokens: is missing")


def test_the_flag_takes_known_formats_only():
    config = REPO / "configs" / "quickstart.yaml"
    assert load_config(["--data-format", "slime"], default_config=config).data.data_format == "slime"
    with pytest.raises(UserError, match="--data-format = 'vrel': must be 'auto', .*'verl'"):
        load_config(["--data-format", "vrel"], default_config=config)


def test_an_unknown_format_lists_the_known():
    with pytest.raises(ValueError, match="unknown data format 'vrel': known are auto, tinker, slime"):
        format_named("vrel")


def test_a_plain_row_with_other_fields_beside_stays_plain(tmp_path, tokenizer):
    row = {"prompt": "ab", "completion": "ba", "reward": 1, "data_source": "x", "meta_info": {"by": "me"}}
    (sample,) = read(tmp_path, row, tokenizer=tokenizer)
    assert sample.reward == 1


def test_a_list_in_a_json_file(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([first_row("plain"), 3], indent=1), encoding="utf-8")
    with pytest.raises(UserError, match=r"rows.json: row 2: row = 3: must be an object"):
        read_files([str(path)], row_format())
    assert len(read_files([str(path)], row_format(), skip_bad_rows=True).samples) == 1
    path.write_text("\n".join([json.dumps(first_row("plain"))] * 2), encoding="utf-8")
    assert len(read_files([str(path)], row_format()).samples) == 2


class TestParquet:
    @pytest.mark.parametrize("name", ("verl", "slime", "plain", "skyrl", "nemo_rl"))
    def test_the_same_samples_as_from_jsonl(self, tmp_path, name):
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        path = tmp_path / "rows.parquet"
        parquet.write_table(pyarrow.Table.from_pylist([first_row(name)] * 3), path)
        (expected,) = read_files([str(FILES / f"{name}.jsonl")], row_format()).samples
        samples = read_files([str(path)], row_format()).samples
        assert len(samples) == 3
        for sample in samples:
            assert sample.token_ids.tolist() == expected.token_ids.tolist()
            assert sample.prompt_length == expected.prompt_length
            assert sample.loss_mask.tolist() == expected.loss_mask.tolist()
            assert sample.rollout_logprobs.tolist() == expected.rollout_logprobs.tolist()
            assert sample.old_logprobs.tolist() == expected.old_logprobs.tolist()
            assert (sample.reward, sample.group) == (expected.reward, expected.group)

    def test_rows_are_numbered(self, tmp_path):
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        path = tmp_path / "rows.parquet"
        rows = [first_row("slime")] * 1500 + [changed("slime", "rollout_log_probs", [0.5, -1.0, -1.0])]
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        with pytest.raises(UserError, match=r"rows.parquet: row 1501: rollout_log_probs = 0.5: must be finite"):
            read_files([str(path)], row_format())

    def test_a_file_that_is_none(self, tmp_path):
        pytest.importorskip("pyarrow")
        path = tmp_path / "rows.parquet"
        path.write_bytes(b"not parquet at all")
        with pytest.raises(UserError, match="rows.parquet: is no Parquet file that can be read"):
            read_files([str(path)], row_format())
        with pytest.raises(UserError, match="nowhere.parquet: .*No such file"):
            read_files([str(tmp_path / "nowhere.parquet")], row_format())

    def test_without_pyarrow_the_remedy_is_named_and_jsonl_is_read(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(UserError, match="rows.parquet: is Parquet, which needs pyarrow.*pip install pyarrow"):
            read_files([str(tmp_path / "rows.parquet")], row_format())
        assert read_files([str(FILES / "slime.jsonl")], row_format()).samples


class TestChatTemplate:
    def read(self, tmp_path, tokenizer, template):
        path = tmp_path / "chat.jinja"
        path.write_text(template, encoding="utf-8")
        return read_files([str(FILES / "messages.jsonl")], row_format(tokenizer, chat_template=str(path))).samples

    def test_a_template_renders_the_turns_before_the_reply(self, tmp_path, tokenizer):
        turns = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
        template = turns + "{% if add_generation_prompt %}>{% endif %}"
        (sample,) = self.read(tmp_path, tokenizer, template)
        assert tokenizer.decode(sample.token_ids[: sample.prompt_length].tolist()) == "abacd>"
        assert sample.group == "abacd>"

    @pytest.mark.parametrize(
        ("template", "message"),
        [
            (
                "{{ raise_exception('turns must alternate') }}",
                "messages: the chat template fails: turns must alternate",
            ),
            ("{{ messages[0].content.__class__.__mro__ }}", "messages: the chat template fails: .*unsafe"),
            (
                "{{ messages.append(1) }}",
                "messages: the chat template fails: access to attribute 'append' of 'list' object is unsafe",
            ),
            ("{{ 1 / 0 }}", "messages: the chat template fails: division by zero"),
            ("a{% if %}", "--chat-template = .*line 1 is no Jinja"),
        ],
    )
    def test_a_template_that_fails(self, tmp_path, tokenizer, template, message):
        with pytest.raises(UserError, match=message):
            self.read(tmp_path, tokenizer, template)

    def test_a_template_that_is_not_there_is_named_even_if_no_row_needs_it(self, tmp_path):
        form = row_format(chat_template=str(tmp_path / "nowhere.jinja"))
        with pytest.raises(UserError, match="--chat-template = .*nowhere.jinja: cannot be read .No such file"):
            read_files([str(FILES / "slime.jsonl")], form)


def test_the_rows_of_the_documentation_are_read(tmp_path, tokenizer):
    text = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    blocks = [part.partition("```")[0] for part in text.split("```json\n")[1:]]
    rows = [json.loads(line) for block in blocks for line in block.splitlines()]
    assert {format_of(row).name for row in rows} == {source.name for source in FORMATS}
    for row in rows:
        assert read(tmp_path, row, tokenizer=tokenizer, needs_reward="loss_fn_inputs" not in row)
    assert DEFAULT_TEMPLATE in text
