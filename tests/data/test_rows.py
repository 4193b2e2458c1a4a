"""Reading rows: what is a sample, and what each kind of mistake is called."""

from __future__ import annotations

import json

import numpy as np
import pytest

from megatron_rl.config import UserError
from megatron_rl.data.read import read_files
from megatron_rl.data.rows import RowFormat
from megatron_rl.data.tokenizer import SentencePieceTokenizer
from megatron_rl.quickstart.reversal import write_tokenizer

IDS = {"prompt_token_ids": [1, 2], "response_token_ids": [3, 4, 5], "reward": 1}
TEXT = {"prompt": "abcd>", "completion": "dcba", "reward": 0.5}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    write_tokenizer(path)
    return SentencePieceTokenizer(str(path))


def row_format(tokenizer=None, **options):
    given = {"seq_length": 16, "long_rows": "error", "needs_reward": True, "needs_old_logprobs": False} | options
    return RowFormat(tokenizer=tokenizer, vocab_size=10, **given)


def read(tmp_path, rows, form, **options):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return read_files([str(path)], form, **options), path


def problem(tmp_path, row, form):
    with pytest.raises(UserError) as caught:
        read(tmp_path, [row], form)
    (found,) = caught.value.problems
    where, _, field = found.where.partition(":1: ")
    assert where.endswith("rows.jsonl")
    return field, str(found)


def test_text_rows_are_tokenized(tmp_path, tokenizer):
    (data, _) = read(tmp_path, [TEXT], row_format(tokenizer))
    (sample,) = data.samples
    assert tokenizer.decode(sample.token_ids[: sample.prompt_length].tolist()) == "abcd>"
    assert tokenizer.decode(sample.token_ids[sample.prompt_length :].tolist()) == "dcba"
    assert sample.completion_length == 5  # with the end of sequence
    assert sample.reward == 0.5


@pytest.mark.parametrize("key", ["completion", "response", "output"])
@pytest.mark.parametrize(
    ("reward_key", "reward", "value"), [("reward", 2, 2), ("label", True, 1), ("score", -0.5, -0.5)]
)
def test_names_that_people_use(tmp_path, tokenizer, key, reward_key, reward, value):
    (data, _) = read(tmp_path, [{"prompt": "a", key: "b", reward_key: reward}], row_format(tokenizer))
    assert data.samples[0].reward == value


def test_rows_of_token_ids(tmp_path):
    row = IDS | {"old_logprobs": [-1, -0.5, -2.25], "loss_mask": [1, 0, 1]}
    (data, _) = read(tmp_path, [row], row_format())
    (sample,) = data.samples
    assert sample.token_ids.tolist() == [1, 2, 3, 4, 5]
    assert sample.prompt_length == 2
    assert sample.loss_mask.tolist() == [True, False, True]
    assert sample.old_logprobs.tolist() == [-1, 0, -2.25]  # what stands at a masked token plays no part


@pytest.mark.parametrize(
    ("row", "field", "part"),
    [
        ("{", "row", "is not JSON"),
        ("[1]", "row", "must be an object"),
        ({"completion": "a", "reward": 1}, "prompt_token_ids or prompt", "is missing"),
        ({"prompt": "a", "reward": 1}, "completion or response or output", "is missing"),
        ({"prompt": "a", "completion": "b"}, "reward or score or label", "is missing"),
        (TEXT | {"response": "x"}, "completion and response", "mean the same"),
        (TEXT | {"label": True}, "reward and label", "mean the same"),
        (TEXT | {"prompt": 3}, "prompt", "must be text"),
        (TEXT | {"prompt": ""}, "prompt", "is empty"),
        (TEXT | {"completion": "\ud800"}, "completion", "surrogate"),
        (TEXT | {"reward": "1"}, "reward", "must be a finite number"),
        ('{"prompt": "a", "completion": "b", "reward": NaN}', "reward", "must be a finite number"),
        (TEXT | {"old_logprobs": [-1]}, "old_logprobs", "needs token ids"),
        (
            TEXT | {"completion": "a" * 40},
            "row",
            "has 46 tokens, more than seq_length 16; give --truncate or --drop-long",
        ),
        (IDS | {"response_token_ids": []}, "response_token_ids", "is empty"),
        (IDS | {"response_token_ids": [1, "2"]}, "response_token_ids", "list of whole numbers"),
        (IDS | {"response_token_ids": [1, True]}, "response_token_ids", "list of whole numbers"),
        (IDS | {"response_token_ids": [10]}, "response_token_ids", "outside the vocabulary of 10"),
        (IDS | {"prompt_token_ids": [-1]}, "prompt_token_ids", "outside the vocabulary of 10"),
        (IDS | {"old_logprobs": [-1, -1]}, "old_logprobs", "has 2 values for 3 response tokens"),
        (IDS | {"old_logprobs": [-1, 0.5, -1]}, "old_logprobs", "not above 0"),
        (IDS | {"old_logprobs": [-1, None, -1]}, "old_logprobs", "list of numbers"),
        (json.dumps(IDS)[:-1] + ', "old_logprobs": [-1, NaN, -1]}', "old_logprobs", "must be finite"),
        (json.dumps(IDS)[:-1] + ', "old_logprobs": [-1, -Infinity, -1]}', "old_logprobs", "must be finite"),
        (IDS | {"loss_mask": [1, 2, 0]}, "loss_mask", "0 and 1 only"),
        (IDS | {"loss_mask": [1]}, "loss_mask", "has 1 values for 3"),
    ],
)
def test_each_mistake_is_named(tmp_path, tokenizer, row, field, part):
    found, text = problem(tmp_path, row, row_format(tokenizer))
    assert found == field
    assert part in text


def test_text_without_a_tokenizer(tmp_path):
    assert "--tokenizer-model" in problem(tmp_path, TEXT, row_format())[1]


def test_missing_old_logprobs_name_the_remedy(tmp_path):
    assert "--old-logprobs initial" in problem(tmp_path, IDS, row_format(needs_old_logprobs=True))[1]


def test_twenty_problems_are_shown_and_the_rest_counted(tmp_path, tokenizer):
    with pytest.raises(UserError) as caught:
        read(tmp_path, ["{"] * 25 + [TEXT], row_format(tokenizer))
    assert len(caught.value.problems) == 20
    assert str(caught.value).splitlines()[0] == "data: 25 problems"
    assert str(caught.value).splitlines()[-1].strip() == "... and 5 more"


def test_bad_rows_are_listed_when_they_are_to_be_skipped(tmp_path, tokenizer):
    (data, path) = read(tmp_path, ["{", TEXT, "", TEXT | {"reward": None}], row_format(tokenizer), skip_bad_rows=True)
    assert len(data.samples) == 1
    assert [p.where for p in data.skipped] == [f"{path}:1: row", f"{path}:4: reward"]
    assert data.summary() == "1 completions, 2 bad rows skipped"


def test_no_row_left_is_an_error(tmp_path, tokenizer):
    with pytest.raises(UserError, match="holds no row"):
        read(tmp_path, ["{"], row_format(tokenizer), skip_bad_rows=True)


def test_long_rows_are_cut_and_counted(tmp_path):
    rows = [IDS | {"response_token_ids": [3] * 20, "old_logprobs": [-1.0] * 20}, IDS]
    (data, _) = read(tmp_path, rows, row_format(long_rows="truncate"))
    assert [len(s) for s in data.samples] == [16, 5]
    assert len(data.samples[0].old_logprobs) == len(data.samples[0].loss_mask) == 14
    assert data.summary() == "2 completions, 1 truncated"


def test_a_prompt_that_leaves_no_room_is_an_error_also_when_cutting(tmp_path):
    row = IDS | {"prompt_token_ids": [1] * 16}
    assert "its prompt alone fills" in problem(tmp_path, row, row_format(long_rows="truncate"))[1]


def test_long_rows_are_dropped_and_counted(tmp_path):
    (data, _) = read(tmp_path, [IDS | {"response_token_ids": [3] * 20}, IDS], row_format(long_rows="drop"))
    assert len(data.samples) == 1
    assert data.summary() == "1 completions, 1 too long and dropped"


def test_bytes_that_are_not_text_are_named(tmp_path, tokenizer):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(json.dumps(TEXT).encode() + b'\n{"prompt": "\xff"}\n')
    with pytest.raises(UserError, match=r"rows.jsonl:2: row: is not UTF-8"):
        read_files([str(path)], row_format(tokenizer))


def test_a_missing_file_is_named(tmp_path, tokenizer):
    with pytest.raises(UserError, match="nowhere.jsonl: No such file"):
        read_files([str(tmp_path / "nowhere.jsonl")], row_format(tokenizer))


def test_evaluation_needs_no_reward(tmp_path, tokenizer):
    (data, _) = read(tmp_path, [{"prompt": "a", "completion": "b"}], row_format(tokenizer).for_evaluation())
    assert np.isnan(data.samples[0].reward)


@pytest.mark.parametrize("content", [None, b"not a model"])
def test_a_tokenizer_that_is_none(tmp_path, content):
    path = tmp_path / "t.model"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match="no such file|not a SentencePiece model"):
        SentencePieceTokenizer(str(path))
