"""A run that goes on is the run that was never stopped."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import psutil
import pytest

from tests.harness import PRETRAIN, REPO, lines_of, torchrun
from tests.training.conftest import write_rows

# the schedule moves at every step, so that a restarted one would show
SCHEDULE = ["--lr-warmup-iters=3", "--lr-decay-style=cosine", "--lr-decay-iters=6", "--weight-decay=0.1"]
TP2, PP2, CP2 = "--tensor-model-parallel-size=2", "--pipeline-model-parallel-size=2", "--context-parallel-size=2"
EP2 = "--expert-model-parallel-size=2"
MOE = ["--num-experts=4", "--moe-ffn-hidden-size=48"]
NETWORK = ["--loss-mode=dro_v", "--value-model=network", "--dro-tau=5", "--value-lr=2e-3"]
LEARNT = {
    "network": [*NETWORK, TP2],
    "head": ["--advantage-estimator=gae", "--value-model=head", CP2],
    "adaptive": ["--dro-target-kl=0.01", "--advantage-estimator=value", "--value-model=scalar"],
}
"""Objectives with a state of their own: a value network and its optimizer, a head, a number, a beta that moves."""
ELSEWHERE = {1: {"one process": []}, 2: {"PP2": [PP2], "DP2": [], "CP2": [CP2], "TP2": [TP2]}}


@pytest.fixture(scope="module")
def runs(tiny_config, tmp_path_factory):
    """Folders of: `whole`, 4 steps; `parts`, 2 and then 2 more; and 2 more steps on other layouts.

    The old policy is the starting weights, which must outlive the stop too.
    """
    folder = tmp_path_factory.mktemp("resume")
    base = ["--config", str(tiny_config), *SCHEDULE, "--old-logprobs=initial", "--train-iters"]

    load = ["--load", str(folder / "half" / "checkpoints")]

    def start(world, cases):
        path = folder / f"cases-{world}-{len(list(folder.iterdir()))}.json"
        path.write_text(json.dumps({str(folder / name): flags for name, flags in cases}))
        return torchrun(world, REPO / "tests" / "workers" / "training_runs.py", str(path)).stdout

    logs = start(
        2,
        [
            ("whole", [*base, "4", TP2]),
            ("half", [*base, "2", TP2]),
            ("parts", [*base, "4", TP2, *load]),
            (
                "smaller batches",
                [*base, "4", TP2, "--global-batch-size=8", "--load", str(folder / "half" / "checkpoints")],
            ),
            ("lower rate", [*base, "4", TP2, "--lr=5e-4", *load]),
            *(
                (f"{kind} {part}", [*base, steps, *flags, *more])
                for kind, flags in LEARNT.items()
                for part, steps, more in (
                    ("half", "2", []),
                    ("whole", "4", []),
                    ("parts", "4", ["--load", str(folder / f"{kind} half" / "checkpoints")]),
                )
            ),
            (
                "network elsewhere",
                [*base, "4", *NETWORK, PP2, "--load", str(folder / "network half" / "checkpoints")],
            ),
            ("moe half", [*base, "2", EP2, *MOE]),
            ("moe whole", [*base, "4", EP2, *MOE]),
            ("moe parts", [*base, "4", EP2, *MOE, "--load", str(folder / "moe half" / "checkpoints")]),
        ],
    )
    for world, layouts in ELSEWHERE.items():
        logs += start(world, [(name, [*base, "4", *flags, *load]) for name, flags in layouts.items()])
    write_rows(folder / "other.jsonl", 40, seed=5)
    logs += start(
        1,
        [
            ("plain optimizer", [*base, "4", "--no-use-distributed-optimizer", *load]),
            ("moe EP1", [*base, "4", *MOE, "--load", str(folder / "moe half" / "checkpoints")]),
            ("other model", [*base, "4", "--ffn-hidden-size=32", "--qk-layernorm", *load]),
            ("no value model", [*base, "4", "--load", str(folder / "network half" / "checkpoints")]),
            ("other rows", [*base, "4", "--train-data", str(folder / "other.jsonl"), *load]),
        ],
    )
    return folder, logs


def numbers(folder, name, logs=""):
    error = folder / name / "error.txt"
    assert not error.exists(), error.read_text()
    lines = lines_of(folder / name / "metrics.jsonl")
    for line in lines:
        del line["tokens_per_second"]
    return {line["step"]: line for line in lines}, lines_of(folder / name / "evaluations.jsonl")[-1]


@pytest.mark.parametrize("kind", ["", "moe ", *(f"{kind} " for kind in LEARNT)])
def test_two_and_two_steps_are_four_bit_for_bit(runs, kind):
    folder, _ = runs
    whole, evaluation = numbers(folder, kind + "whole")
    parts, evaluation_of_parts = numbers(folder, kind + "parts")
    half, _ = numbers(folder, kind + "half")
    assert half == {step: whole[step] for step in (1, 2)}
    assert parts == {step: whole[step] for step in (3, 4)}
    assert evaluation_of_parts == evaluation  # the weights after the last step too


def test_what_an_objective_has_learnt_moves(runs):
    """So that a state which is neither saved nor moved could not pass."""
    folder, _ = runs
    adaptive, network = numbers(folder, "adaptive whole")[0], numbers(folder, "network whole")[0]
    assert adaptive[3]["dro_beta"] != adaptive[1]["dro_beta"]
    assert adaptive[3]["state_value"] > 0.1
    assert network[4]["state_value"] != network[3]["state_value"] != 0


def test_a_value_network_goes_on_elsewhere(runs):
    folder, _ = runs
    whole, found = numbers(folder, "network whole")[0], numbers(folder, "network elsewhere")[0]
    for step in (3, 4):
        assert found[step] == pytest.approx(whole[step], rel=1e-5, abs=2e-6)


def test_the_learning_rate_goes_on(runs):
    folder, _ = runs
    whole, _ = numbers(folder, "whole")
    rates = [whole[step]["lr"] for step in (1, 2, 3, 4)]
    assert rates == pytest.approx([1e-3 / 3, 2e-3 / 3, 1e-3, 1e-3 * 0.75])
    assert numbers(folder, "parts")[0][3]["lr"] == rates[2]


def test_the_rows_go_on_with_another_batch_size(runs):
    """16 of the rows that step 3 would have taken make two batches of 8."""
    folder, _ = runs
    whole, smaller = numbers(folder, "whole")[0], numbers(folder, "smaller batches")[0]
    assert smaller[3]["tokens"] + smaller[4]["tokens"] == whole[3]["tokens"]


def test_another_learning_rate_is_taken(runs):
    folder, _ = runs
    whole, lower = numbers(folder, "whole")[0], numbers(folder, "lower rate")[0]
    assert lower[3]["lr"] == pytest.approx(whole[3]["lr"] / 2)
    assert lower[3]["loss"] == whole[3]["loss"]


@pytest.mark.parametrize("layout", [name for layouts in ELSEWHERE.values() for name in layouts])
def test_another_layout_goes_on_with_the_same_numbers(runs, layout):
    folder, _ = runs
    whole, evaluation = numbers(folder, "whole")
    found, evaluation_there = numbers(folder, layout)
    for step in (3, 4):
        # log-ratios are differences of log-probabilities, which carry rounding of a few 1e-7
        assert found[step] == pytest.approx(whole[step], rel=1e-5, abs=2e-6)
    assert evaluation_there == pytest.approx(evaluation, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("plain optimizer", "--use-distributed-optimizer = False: the checkpoint"),
        ("moe EP1", "--expert-model-parallel-size = 1: the checkpoint"),
        ("other model", "--ffn-hidden-size = 32: the checkpoint"),
        ("other model", "--qk-layernorm = True: the checkpoint"),
        ("no value model", "--value-model = None: the checkpoint"),
        ("other rows", "belongs to other training rows"),
    ],
)
def test_what_cannot_go_on_is_named(runs, name, part):
    folder, _ = runs
    error = (folder / name / "error.txt").read_text()
    assert "UserError" in error
    assert part in error


def test_after_a_killed_rank_the_same_command_goes_on(tiny_config, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(PRETRAIN)]
    command += ["--config", str(tiny_config), "--run-dir", str(tmp_path / "run"), "--save-interval=4"]
    command += ["--train-iters=400", "--log-interval=100"]
    pointer = tmp_path / "run" / "checkpoints" / "latest_checkpointed_iteration.txt"
    first = subprocess.Popen(command, cwd=REPO, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not pointer.exists() or int(pointer.read_text()) < 8:
        assert first.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    psutil.Process(first.pid).children()[-1].kill()
    assert first.wait(timeout=60) != 0
    stopped_at = int(pointer.read_text())

    command[command.index("--train-iters=400")] = f"--train-iters={stopped_at + 2}"
    again = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=120, check=False)
    assert again.returncode == 0, again.stdout + again.stderr
    assert f"iter_{stopped_at:07}, step {stopped_at} of {stopped_at + 2}" in again.stdout
    steps = [line["step"] for line in lines_of(tmp_path / "run" / "metrics.jsonl")]
    assert steps == list(range(1, stopped_at + 3))
