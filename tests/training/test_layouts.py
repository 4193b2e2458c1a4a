"""One seed, one data set, three optimizer steps: the same numbers on every layout as in one process.

The model computes in fp32. A layout changes the order of sums, which moves a result by a few 1e-7; 1e-5 is
far above that and far below any wrong factor, lost label or double count.
"""

from __future__ import annotations

import json

import pytest

from tests.harness import REPO, lines_of, torchrun

TP2, PP2, CP2 = "--tensor-model-parallel-size=2", "--pipeline-model-parallel-size=2", "--context-parallel-size=2"
SP, VPP2, EP2 = "--sequence-parallel", "--virtual-pipeline-model-parallel-size=2", "--expert-model-parallel-size=2"
ETP2 = "--expert-tensor-parallel-size=2"
PLAIN_OPTIMIZER = "--no-use-distributed-optimizer"
OVERLAP = ["--overlap-grad-reduce", "--overlap-param-gather"]

VARIANTS = {
    "dense": [],
    "untied": ["--untie-embeddings-and-output-weights", "--qk-layernorm", "--add-qkv-bias"],
    "moe": ["--num-experts=4", "--moe-ffn-hidden-size=48"],
    "ppo": ["--loss-mode=vanilla", "--loss-agg-mode=seq-mean-token-mean", "--old-logprobs=initial"],
    "sft": ["--loss-mode=sft", "--loss-agg-mode=seq-mean-token-sum", "--temperature=1.3"],
    "bf16": ["--bf16"],
}
"""What is trained; each is compared with its own run in one process, bf16 with that of fp32."""

OBJECTIVES = {
    "dro sequence": ["--dro-level=sequence", "--advantage-estimator=leave-one-out"],
    "dro target kl": ["--dro-target-kl=0.01"],
    "dro_v scalar": ["--loss-mode=dro_v", "--value-model=scalar", "--dro-tau=5"],
    "dro_v head": ["--loss-mode=dro_v", "--value-model=head", "--dro-tau=5"],
    "dro_v network": ["--loss-mode=dro_v", "--value-model=network", "--dro-tau=5", "--value-lr=2e-3"],
    "agro": ["--loss-mode=agro", "--dro-tau=5"],
    "importance_sampling": ["--loss-mode=importance_sampling", "--advantage-estimator=opo"],
    "cispo": ["--loss-mode=cispo", "--advantage-estimator=soft", "--advantage-tau=0.7"],
    "gspo": ["--loss-mode=gspo", "--advantage-estimator=group-mean-std"],
    "sapo": ["--loss-mode=sapo"],
    "gpg": ["--loss-mode=gpg", "--entropy-coef=0.1"],
    "dppo_tv": ["--loss-mode=dppo_tv"],
    "dppo_kl": ["--loss-mode=dppo_kl"],
    "clip_cov": ["--loss-mode=clip_cov", "--clip-cov-ratio=0.1", "--clip-cov-lb=0.01"],
    "kl_cov": ["--loss-mode=kl_cov", "--kl-cov-ratio=0.1"],
    "geo_mean": ["--loss-mode=geo_mean"],
    "bypass_mode": ["--loss-mode=bypass_mode", "--rollout-rs", "token_k1:0.2:3", "sequence_k3:0.8"],
    "bypass_mode reinforce": ["--loss-mode=bypass_mode", "--bypass-loss=reinforce", "--rollout-is=token"],
    "decoupled": [
        *("--loss-mode=vanilla", "--rollout-is=sequence", "--rollout-is-threshold=5", "--rollout-is-lower=0.2"),
        *("--rollout-rs", "max_k1:1.45", "--loss-agg-mode=seq-mean-token-mean"),
    ],
    "terms": ["--entropy-coef=0.01", "--kl-coef=0.1", "--kl-kind=k3+", "--ref-logprobs=data"],
    "gae head": ["--advantage-estimator=gae", "--value-model=head"],
    "gae network": [
        *("--advantage-estimator=gae", "--value-model=network", "--gae-gamma=0.9", "--gae-lambda=0.8"),
        *("--reward-kl-coef=0.1", "--ref-logprobs=data"),
    ],
    "value scalar": ["--advantage-estimator=value", "--value-model=scalar"],
    "dro baseline": ["--advantage-estimator=dro", "--advantage-tau=5", "--normalize-advantages"],
    "reinforce++": ["--advantage-estimator=reinforce++", "--reward-kl-coef=0.1", "--ref-logprobs=data"],
}
"""Every loss, estimator, correction and value model: each in one process, cut small, and on some layouts."""
VARIANTS |= OBJECTIVES

LAYOUTS = {
    1: {
        "dense": {
            "one process": [],
            "plain optimizer": [PLAIN_OPTIMIZER],
            "budget 1/2": ["--max-tokens-per-microbatch=96"],
            "budget 1/3": ["--max-tokens-per-microbatch=64"],
            "full recompute": ["--recompute-granularity=full"],
            "selective recompute": ["--recompute-granularity=selective"],
        },
        "untied": {"one process": []},
        "moe": {"one process": [], "budget 1/3": ["--max-tokens-per-microbatch=64"]},
        "ppo": {"one process": []},
        "sft": {"one process": []},
        "bf16": {"one process": [], "plain optimizer": [PLAIN_OPTIMIZER]},
    },
    2: {
        "dense": {
            "TP2": [TP2],
            "TP2 SP": [TP2, SP],
            "TP2 SP full recompute": [TP2, SP, "--recompute-granularity=full"],
            "PP2": [PP2],
            "PP2 VPP2": [PP2, VPP2],
            "PP2 plain optimizer": [PP2, PLAIN_OPTIMIZER],
            "PP2 full recompute": [PP2, "--recompute-granularity=full"],
            "DP2": [],
            "DP2 plain optimizer": [PLAIN_OPTIMIZER],
            "DP2 overlap": OVERLAP,
            "DP2 budget 1/3": ["--max-tokens-per-microbatch=64"],
            "CP2": [CP2],
        },
        "untied": {"TP2 SP": [TP2, SP], "PP2": [PP2]},
        "moe": {
            "DP2": [],
            "EP2": [EP2],
            "EP2 plain optimizer": [EP2, PLAIN_OPTIMIZER],
            "TP2 SP": [TP2, SP],
            "TP2 SP ETP2": [TP2, SP, ETP2],
        },
        "ppo": {"CP2": [CP2]},
        "sft": {"PP2": [PP2]},
        "bf16": {"TP2 SP": [TP2, SP], "PP2": [PP2], "DP2 overlap": OVERLAP},
    },
    8: {
        "dense": {
            "TP2 PP2 DP2": [TP2, PP2],
            "TP2 CP2 DP2": [TP2, CP2],
            "TP2 SP PP2 VPP2 CP2 overlap": [TP2, SP, PP2, VPP2, CP2, *OVERLAP],
            "PP4 DP2": ["--pipeline-model-parallel-size=4"],
        },
        "moe": {"EP2 TP2 SP PP2 DP2": [EP2, TP2, SP, PP2]},
        "ppo": {"TP2 SP CP2 DP2": [TP2, SP, CP2]},
    },
}

SPREAD = {
    1: {"budget 1/3": ["--max-tokens-per-microbatch=64"]},
    2: {"CP2": [CP2], "TP2 SP": [TP2, SP], "PP2": [PP2], "DP2": []},
    8: {"TP2 SP CP2 DP2": [TP2, SP, CP2], "TP2 PP2 CP2": [TP2, PP2, CP2]},
}
OFTEN_SPREAD = ["dro sequence", "dro_v head", "dro_v network", "agro", "gae network", "decoupled"]
SUMS_SEQUENCES = ["gspo", "geo_mean", "dro_v scalar", "gae head", "value scalar", "dro baseline", "bypass_mode"]
for number, variant in enumerate(OBJECTIVES):
    LAYOUTS[1][variant] = {"one process": [], **SPREAD[1]}
    # one layout each, in turn; what sums over sequences crosses ranks under context parallelism
    one = "CP2" if variant in SUMS_SEQUENCES else list(SPREAD[2])[number % len(SPREAD[2])]
    LAYOUTS[2][variant] = SPREAD[2] if variant in OFTEN_SPREAD else {one: SPREAD[2][one]}
    if variant in OFTEN_SPREAD:
        name = list(SPREAD[8])[number % len(SPREAD[8])]
        LAYOUTS[8][variant] = {name: SPREAD[8][name]}

CASES = [(world, v, layout) for world, vs in LAYOUTS.items() for v, layouts in vs.items() for layout in layouts]


@pytest.fixture(scope="module")
def runs(tiny_config, tmp_path_factory):
    """All runs, in one start of a process group for each number of processes: {(world, variant, layout): folder}."""
    folder = tmp_path_factory.mktemp("layouts")
    folders, logs = {}, {}
    for world, variants in LAYOUTS.items():
        commands = {}
        for variant, layouts in variants.items():
            for layout, flags in layouts.items():
                where = folder / f"{world}-{variant}-{layout}".replace(" ", "_").replace("/", ":")
                folders[world, variant, layout] = where
                commands[str(where)] = ["--config", str(tiny_config), *VARIANTS[variant], *flags]
        cases = folder / f"cases-{world}.json"
        cases.write_text(json.dumps(commands))
        run = torchrun(world, REPO / "tests" / "workers" / "training_runs.py", str(cases), timeout=900)
        logs[world] = run.stdout
    return folders, logs


@pytest.mark.parametrize(("world", "variant", "layout"), CASES, ids=[f"{w}-{v}-{n}" for w, v, n in CASES])
@pytest.mark.parametrize("file", ["metrics.jsonl", "evaluations.jsonl"])
def test_same_numbers_as_one_process(runs, world, variant, layout, file):
    folders, logs = runs
    folder = folders[world, variant, layout]
    error = folder / "error.txt"
    assert not error.exists(), error.read_text()
    assert (folder / file).exists(), logs[world][-3000:]
    reference = "dense" if variant == "bf16" else variant
    found, expected = lines_of(folder / file), lines_of(folders[1, reference, "one process"] / file)
    # where the old policy is the starting one, log-ratios begin as rounding noise of log-probabilities
    noise = 2e-6 if variant == "ppo" else 0
    for line in (*found, *expected):
        line.pop("tokens_per_second", None)
    assert [line["step"] for line in found] == ([0, 3] if file == "evaluations.jsonl" else [1, 2, 3])
    # bf16 keeps 8 bits: a log-probability of 3 moves by .01
    rel = 0.02 if variant == "bf16" else 1e-5
    for got, want in zip(found, expected, strict=True):
        assert got == pytest.approx(want, rel=rel, abs=noise)


def test_steps_report_what_is_promised(runs):
    folders, _ = runs
    line = lines_of(folders[1, "dense", "one process"] / "metrics.jsonl")[0]
    promised = """step loss grad_norm lr tokens tokens_per_second reward log_ratio_mean log_ratio_p1 log_ratio_p50
        log_ratio_p99 dro_penalty_pull dro_penalty_share kl_old_new_k1 kl_old_new_k3"""
    assert set(promised.split()) <= set(line)
    assert all(line[name] is not None for name in promised.split())
