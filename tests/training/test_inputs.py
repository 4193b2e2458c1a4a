"""What a run reads is checked as a whole, before anything is started."""

from __future__ import annotations

import json

import pytest

from megatron_rl.config import UserError, load_config
from tests.training.conftest import write_rows


def read(tiny_config, *flags):
    from megatron_rl.training.inputs import read_inputs

    return read_inputs(load_config(["--config", str(tiny_config), *flags], default_config=tiny_config, world_size=8))


def problems(tiny_config, *flags):
    with pytest.raises(UserError) as caught:
        read(tiny_config, *flags)
    return [str(problem) for problem in caught.value.problems]


def test_problems_of_all_inputs_are_reported_together(tiny_config, tmp_path):
    rows = tmp_path / "bad.jsonl"
    rows.write_text("{\n")
    found = problems(
        tiny_config,
        f"--train-data={rows}",
        "--valid-data=nowhere.jsonl",
        f"--pretrained-checkpoint={tmp_path}",
    )
    for part in (f"{rows}:1: row: is not JSON", "nowhere.jsonl: No such file", "--pretrained-checkpoint"):
        assert any(p.startswith(part) for p in found), (part, found)
    assert len(found) == 3


def test_without_a_tokenizer_missing_files_are_still_named(tiny_config):
    found = problems(tiny_config, "--tokenizer-model=none.model", "--train-data=a.jsonl", "--valid-data=b.jsonl")
    assert [p.split(":")[0].split(" = ")[0] for p in found] == ["--tokenizer-model", "a.jsonl", "b.jsonl"]


def test_a_run_folder_that_is_a_file(tiny_config, tmp_path):
    (tmp_path / "file").touch()
    assert problems(tiny_config, f"--run-dir={tmp_path / 'file'}")[0].startswith("--run-dir")


def test_a_batch_is_no_larger_than_the_data(tiny_config):
    assert "must not exceed the 40 training rows" in problems(tiny_config, "--global-batch-size=41")[0]


def test_epochs_are_whole_steps(tiny_config):
    assert read(tiny_config, "--epochs=2.0").train_iters == 5  # 80 rows in batches of 16
    assert read(tiny_config, "--epochs=0.5").train_iters == 2  # 20 rows


def test_a_warm_up_longer_than_the_schedule(tiny_config):
    found = problems(tiny_config, "--lr-warmup-iters=3", "--lr-decay-style=cosine")
    assert "--lr-warmup-iters = 3: must be below the 3 steps" in found[0]
    found = problems(tiny_config, "--lr-warmup-iters=5", "--lr-decay-style=cosine", "--epochs=2.0")
    assert "must be below the 5 steps" in found[0]


@pytest.mark.parametrize(("divisor", "fits"), [(4, True), (22, True), (23, False), (128, False)])
def test_a_vocabulary_padded_onto_one_rank(tiny_config, divisor, fits):
    flags = [f"--make-vocab-size-divisible-by={divisor}", "--tensor-model-parallel-size=2"]
    if fits:
        assert read(tiny_config, *flags).vocab_size == 23
    else:
        assert "give less than 23" in problems(tiny_config, *flags)[0]


def test_the_fingerprint_is_that_of_the_tokens(tiny_config, tmp_path):
    first = read(tiny_config).fingerprint()
    assert read(tiny_config, "--seed=5").fingerprint() == first
    write_rows(tmp_path / "other.jsonl", 40, seed=9)
    assert read(tiny_config, f"--train-data={tmp_path / 'other.jsonl'}").fingerprint() != first


@pytest.mark.parametrize(
    "flags",
    [
        ["--advantage-estimator=group-mean-std"],
        ["--loss-mode=agro"],
        ["--advantage-estimator=dro", "--advantage-tau=1"],
    ],
)
def test_a_row_that_is_alone_is_named_where_rows_are_compared(tiny_config, tmp_path, flags):
    rows = tmp_path / "rows.jsonl"
    write_rows(rows, 40, seed=9)
    lines = [json.loads(line) for line in rows.read_text().splitlines()]
    lines[6]["group"] = "another"
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = problems(tiny_config, f"--train-data={rows}", *flags)
    assert len(found) == 1
    assert found[0].startswith(f"{rows}:7: is the only row of its prompt")


@pytest.mark.parametrize("flag", ["--rollout-is=token", "--rollout-rs=token_k1:2"])
def test_a_policy_is_not_compared_with_itself(tiny_config, tmp_path, flag):
    rows = tmp_path / "rows.jsonl"
    write_rows(rows, 40, seed=9, rollout_logprobs=None)
    (found,) = problems(tiny_config, f"--train-data={rows}", flag)
    assert "--old-logprobs initial or current" in found
    read(tiny_config, f"--train-data={rows}", flag, "--old-logprobs=current")


@pytest.mark.parametrize(
    ("field", "flags"),
    [
        ("reward", []),
        ("reward", ["--loss-mode=agro"]),
        ("ref_logprobs", ["--kl-coef=0.1", "--ref-logprobs=data"]),
        ("ref_logprobs", ["--reward-kl-coef=0.1", "--ref-logprobs=data"]),
        ("advantages", ["--advantage-estimator=precomputed"]),
        ("baseline_reward", ["--advantage-estimator=remax"]),
    ],
)
def test_rows_hold_what_the_objective_reads(tiny_config, tmp_path, field, flags):
    rows = tmp_path / "rows.jsonl"
    write_rows(rows, 40, seed=9, **{field: None})
    found = problems(tiny_config, f"--train-data={rows}", *flags)
    assert f"{rows}:1: {field}" in found[0]
    assert "is missing" in found[0]


def test_given_advantages_need_no_reward(tiny_config, tmp_path):
    rows = tmp_path / "rows.jsonl"
    write_rows(rows, 40, seed=9, reward=None, advantages=0.5)
    assert len(read(tiny_config, f"--train-data={rows}", "--advantage-estimator=precomputed").train.samples) == 40


def test_logprobs_of_another_temperature_are_not_compared(tiny_config, tmp_path):
    rows = tmp_path / "rows.jsonl"
    write_rows(rows, 40, seed=9, temperature=0.7)
    assert "must be 1.0" in problems(tiny_config, f"--train-data={rows}")[0]
    read(tiny_config, f"--train-data={rows}", "--temperature=0.7")
    read(tiny_config, f"--train-data={rows}", "--old-logprobs=initial")
