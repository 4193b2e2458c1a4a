"""The configuration: every problem at once, where it is, before torch is imported."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import yaml

from megatron_rl.config import UserError, dump_config, load_config
from tests.harness import PRETRAIN, REPO

QUICKSTART = REPO / "configs" / "quickstart.yaml"


def load(*flags, config=QUICKSTART, world_size=1):
    return load_config(list(flags), default_config=config, world_size=world_size)


def problems(*flags, **options):
    with pytest.raises(UserError) as caught:
        load(*flags, **options)
    return [str(problem) for problem in caught.value.problems]


def written(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return path


def test_the_command_line_goes_before_the_file_and_the_file_before_the_default():
    config = load("--lr", "5e-4", "--dro_beta=0.7")
    assert config.optimizer.lr == 5e-4
    assert config.loss.dro_beta == 0.7
    assert config.model.hidden_size == 48
    assert config.optimizer.adam_beta2 == 0.95


def test_the_resolved_configuration_can_be_given_back(tmp_path):
    config = load("--loss-mode", "vanilla", "--clip-ratio", "0.3", "--no-shuffle", "--run-dir", "x")
    again = load(config=written(tmp_path, dump_config(config)))
    assert again.model_copy(update={"checkpoint": config.checkpoint}) == config
    assert again.checkpoint.run_dir is None


@pytest.mark.parametrize("given", ["nan", "inf", "-.inf", "0", "-1", "true", "abc", "''"])
def test_beta_on_the_command_line_must_be_a_positive_finite_number(given):
    found = problems(f"--dro-beta={given}")
    assert len(found) == 1
    assert found[0].startswith("--dro-beta")
    assert "positive finite number" in found[0]


@pytest.mark.parametrize("given", ['"0.05"', "true", ".nan", ".inf", "0", "-0.1"])
def test_beta_in_the_file_must_be_a_positive_finite_number(tmp_path, given):
    text = QUICKSTART.read_text().replace("dro_beta: 0.1", f"dro_beta: {given}")
    path = written(tmp_path, text)
    (found,) = problems(config=path)
    assert found.startswith(f"{path}: loss.dro_beta = ")
    assert "positive finite number" in found


@pytest.mark.parametrize("given", ["~", None])
def test_beta_is_required(tmp_path, given):
    line = "" if given is None else f"dro_beta: {given}"
    path = written(tmp_path, QUICKSTART.read_text().replace("dro_beta: 0.1", line))
    found = problems("--loss-mode", "dro", config=path)
    assert len(found) == 1
    assert "dro_beta" in found[0].replace("-", "_")
    assert "required by loss_mode dro" in found[0]


def test_a_number_in_exponent_notation_is_a_number(tmp_path):
    path = written(tmp_path, QUICKSTART.read_text().replace("dro_beta: 0.1", "dro_beta: 1e-6"))
    assert load(config=path).loss.dro_beta == 1e-6


def test_all_problems_are_reported_together():
    found = problems(
        "--dro-beta=nan",
        "--lr=fast",
        "--loss-agg-mode=mean",
        "--num-layers=3",
        "--pipeline-model-parallel-size=2",
        "--global-batchsize=4",
        "--config",
        str(QUICKSTART),
        "stray",
        "--train-iters",
    )
    for part in (
        "--dro-beta",
        "--lr = 'fast'",
        "'seq-mean-token-sum'",
        "--num-layers = 3: must be a multiple",
        "must divide the 1 processes",
        "did you mean --global-batch-size",
        "--train-iters: needs a value",
        "'stray': unexpected argument",
    ):
        assert any(part in p for p in found), (part, found)


def test_unknown_keys_and_sections_are_named(tmp_path):
    path = written(tmp_path, "modle: {}\nmodel: {num_layer: 2, lr: 1}\n")
    found = problems(config=path)
    assert any("modle" in p and "did you mean model" in p for p in found)
    assert any("model.num_layer" in p and "did you mean num_layers" in p for p in found)
    assert any("model.lr" in p and "section optimizer" in p for p in found)
    assert any(p.startswith("--hidden-size: is required") for p in found)


@pytest.mark.parametrize("text", ["a: [", "- 1\n", "model: 3\n", "model: {a: 1, a: 2}\n"])
def test_a_broken_file_is_named(tmp_path, text):
    path = written(tmp_path, text)
    assert all(str(path) in p for p in problems(config=path))


def test_a_missing_file_is_named():
    found = problems("--config", "nowhere.yaml", "--dro-beta", "nan")
    assert found[0] == "--config = nowhere.yaml: No such file or directory"
    assert found[1].startswith("--dro-beta = 'nan'")
    assert len(found) == 2


def test_an_option_of_another_loss_on_the_command_line_is_an_error():
    assert problems("--clip-ratio", "0.2") == [
        "--clip-ratio = 0.2: is an option of bypass_mode, clip_cov, vanilla, not of loss_mode dro"
    ]


def test_options_in_the_file_belong_to_the_loss_in_the_file():
    assert load("--loss-mode", "vanilla").loss.dro_beta is None


def test_options_that_two_losses_share_do_not_go_over_to_the_other(tmp_path):
    of_dro, of_vanilla = "loss_mode: dro\n  dro_beta: 0.1", "loss_mode: vanilla\n  clip_ratio_low: 0.1"
    text = QUICKSTART.read_text().replace(of_dro, of_vanilla)
    path = written(tmp_path, text)
    assert load(config=path).loss.policy_loss().low == 0.1
    assert load("--loss-mode", "gspo", config=path).loss.policy_loss().clip_ratio_low == 3e-4
    assert load("--loss-mode", "vanilla", config=path).loss.policy_loss().low == 0.1


def test_each_loss_has_the_aggregation_of_its_paper():
    assert load("--loss-mode", "gspo").loss.policy_loss().default_agg_mode == "seq-mean-token-mean"
    assert load("--dro-level", "sequence").loss.policy_loss().default_agg_mode == "seq-mean-token-sum"
    assert load("--dro-beta", "0.2").loss.policy_loss().default_agg_mode == "token-mean"


def test_a_misspelt_loss_gets_a_suggestion():
    assert "did you mean 'sft'" in problems("--loss-mode", "stf")[0]
    assert "did you mean 'clip_cov'" in problems("--loss-mode", "clip-cov")[0]


@pytest.mark.parametrize(
    ("flags", "key", "part"),
    [
        (["--loss-mode=bypass_mode", "--old-logprobs=initial"], "--old-logprobs", "must be data"),
        (["--advantage-estimator=soft"], "--advantage-tau", "is required by advantage_estimator soft"),
        (["--advantage-tau=0.5"], "--advantage-tau", "soft, batch-soft and dro only"),
        (["--loss-mode=dro_v"], "--value-model", "is required by loss_mode dro_v"),
        (["--advantage-estimator=gae"], "--value-model", "is required by advantage_estimator gae"),
        (["--advantage-estimator=gae", "--value-model=scalar"], "--value-model", "needs a value of each token"),
        (["--value-model=head"], "--value-model", "dro_v and the estimators value and gae only"),
        (["--loss-mode=dro_v", "--value-model=head", "--value-lr=0.1"], "--value-lr", "a head learns with the policy"),
        (["--value-loss-coef=2"], "--value-loss-coef", "estimators value and gae only"),
        (["--reward-kl-coef=0.1", "--old-logprobs=current"], "--reward-kl-coef", "old_logprobs data or initial"),
        (["--rollout-is-lower=0.5"], "--rollout-is-lower", "needs rollout_is"),
        (["--rollout-is=token", "--rollout-is-lower=3"], "--rollout-is-lower", "must be below rollout_is_threshold"),
        (["--loss-mode=bypass_mode", "--rollout-is=token"], "--rollout-is", "give bypass_loss reinforce"),
        (["--rollout-rs", "token_k9:1"], "--rollout-rs", "'token_k9' is no criterion"),
        (["--dro-level=word"], "--dro-level", "must be token or sequence"),
        (["--gae-gamma=0.9"], "--gae-gamma", "gae and reinforce++ only"),
        (["--gae-lambda=0.9"], "--gae-lambda", "gae only"),
        (["--kl-kind=k2"], "--kl-kind", "needs a kl_coef"),
        (["--rollout-is-threshold=5"], "--rollout-is-threshold", "needs rollout_is"),
        (["--loss-mode=agro", "--normalize-advantages"], "--normalize-advantages", "takes no advantages"),
        (["--dro-beta-gain=0.2"], "--dro-beta-gain", "needs dro_target_kl"),
        (["--dro-target-kl=0"], "--dro-target-kl", "must be a positive finite number"),
        (["--kl-kind=k4"], "--kl-kind", "must be 'k1'"),
        (["--loss-mode=clip_cov", "--clip-cov-lb=5"], "--clip-cov-ub", "must be above clip_cov_lb"),
    ],
)
def test_what_an_objective_needs(flags, key, part):
    found = problems(*flags)
    assert len(found) == 1
    assert found[0].startswith(key)
    assert part in found[0]


def test_several_criteria_of_rejection():
    config = load("--rollout-rs", "token_k1:0.5:2", "sequence_k3:0.1", "--old-logprobs", "current")
    assert config.off_policy.rollout_rs == ["token_k1:0.5:2", "sequence_k3:0.1"]


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--sequence-parallel"], "needs tensor_model_parallel_size"),
        (["--tensor-model-parallel-size=3"], "must divide num_query_groups 2"),
        (["--virtual-pipeline-model-parallel-size=2"], "needs pipeline_model_parallel_size"),
        (["--expert-model-parallel-size=2"], "needs num_experts"),
        (["--num-experts=2", "--moe-ffn-hidden-size=9", "--expert-tensor-parallel-size=2"], "experts' width 9"),
        (
            ["--pipeline-model-parallel-size=2", "--virtual-pipeline-model-parallel-size=1"],
            "greater than or equal to 2",
        ),
        (["--num-experts=3", "--expert-model-parallel-size=2"], "must divide num_experts 3"),
        (["--overlap-param-gather"], "needs overlap_grad_reduce"),
        (["--truncate", "--drop-long"], "exclude each other"),
        (["--max-tokens-per-microbatch=8"], "at least 16"),
        (["--loss-agg-mode=seq-mean-token-sum-norm"], "is required by seq-mean-token-sum-norm"),
        (["--loss-scale-factor=2"], "used by seq-mean-token-sum-norm only"),
        (["--train-iters=2", "--epochs=1"], "either train_iters or epochs"),
        (["--min-lr=1"], "must not exceed lr"),
        (["--min-lr=1e-5", "--lr-decay-style=constant"], "needs an lr_decay_style"),
        (["--lr-decay-iters=5", "--lr-decay-style=constant"], "needs an lr_decay_style"),
        (["--recompute-num-layers=2"], "needs recompute_granularity full"),
        (["--moe-router-topk=2"], "needs num_experts"),
        (["--moe-ffn-hidden-size=64"], "needs num_experts"),
        (["--num-experts=4", "--moe-router-topk=5"], "must not exceed num_experts 4"),
        (["--eval-interval=2", "--valid-data"], "needs valid_data"),
        (["--kv-channels=7"], "even width"),
        (["--transformer-impl=transformer_engine", "--kv-channels=16"], "give --bf16"),
        (["--transformer-impl=transformer_engine", "--bf16"], "multiple of 8, not 12"),
        (["--num-attention-heads=5", "--num-query-groups=1"], "must divide hidden_size"),
    ],
)
def test_rules_between_keys(flags, part):
    assert any(part in p for p in problems(*flags, world_size=8))


def test_a_sequence_is_padded_for_context_and_tensor_parallelism():
    found = problems(
        "--seq-length=15",
        "--max-tokens-per-microbatch=15",
        "--tensor-model-parallel-size=2",
        "--context-parallel-size=2",
        world_size=4,
    )
    assert any("at least 16" in p for p in found)


@pytest.mark.parametrize("flags", [["--help"], ["--dro-beta", "nan"]])
def test_answers_do_not_import_torch(flags):
    """Torch alone takes longer to import than the whole answer may."""
    code = (
        f"import runpy, sys; sys.modules['torch'] = None; sys.argv = ['x', *{flags!r}]; "
        f"runpy.run_path({str(PRETRAIN)!r}, run_name='__main__')"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=False)
    assert run.returncode == (0 if flags == ["--help"] else 2), run.stderr
    assert "Traceback" not in run.stderr


def test_help_is_grouped_and_complete():
    run = subprocess.run([sys.executable, str(PRETRAIN), "--help"], capture_output=True, text=True, check=True)
    for section, content in yaml.safe_load(dump_config(load())).items():
        assert f"\n{section}:\n" in run.stdout
        assert all("--" + key.replace("_", "-") in run.stdout for key in content)


def test_a_mistake_is_printed_once_and_ends_with_status_2():
    started = time.monotonic()
    run = subprocess.run(
        [sys.executable, str(PRETRAIN), "--dro-beta", "-1"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 2
    assert run.stderr.count("positive finite number") == 1
    assert time.monotonic() - started < 10
