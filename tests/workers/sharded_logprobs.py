"""Worker: cases of vocab-parallel log-probabilities, all in one start of a process group.

    torchrun --nproc-per-node N tests/workers/sharded_logprobs.py RESULTS.json

Each function named case_* is called on every rank; RESULTS.json maps its name to what went wrong, or null.
"""

from __future__ import annotations

import json
import math
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from megatron_rl.logprobs import logprobs_from_logits

INF = math.inf


def shard(whole: torch.Tensor) -> torch.Tensor:
    """This rank's columns."""
    return whole.chunk(dist.get_world_size(), dim=-1)[dist.get_rank()].clone()


def sharded(whole, target):
    """Value, entropy and gradient of this rank's columns, of rows given whole."""
    whole = torch.as_tensor(whole)
    logits = shard(whole).requires_grad_()
    found = logprobs_from_logits(
        logits, torch.tensor(target), tp_group=dist.group.WORLD, vocab_size=whole.shape[1], with_entropy=True
    )
    (gradient,) = torch.autograd.grad(found.logprobs.sum(), logits, retain_graph=True)
    return found.logprobs, found.entropy, gradient


def case_minus_infinity_in_one_shard():
    _, entropy, _ = sharded([[0.0, 1.0, 2.0, -INF]], [1])
    assert abs(entropy.item() - 0.8324) < 5e-5, entropy


def case_a_shard_of_minus_infinity_alone():
    logprobs, entropy, gradient = sharded([[0.0, 1.0, -INF, -INF]], [1])
    assert abs(entropy.item() - 0.5822) < 5e-5, entropy
    assert abs(logprobs.item() + 0.3133) < 5e-5, logprobs
    assert gradient.isfinite().all(), gradient


def case_gradient_reaches_every_shard():
    _, _, gradient = sharded([[0.0, 0.0, 0.0, 0.0]], [0])
    expected = shard(torch.tensor([[0.75, -0.25, -0.25, -0.25]]))
    torch.testing.assert_close(gradient, expected)


def case_all_logits_far_below_zero():
    logprobs, entropy, _ = sharded([[-200.0] * 4], [3])
    assert abs(logprobs.item() + 1.3863) < 5e-5, logprobs
    assert abs(entropy.item() - 1.3863) < 5e-5, entropy


def case_same_as_unsharded():
    """Value, entropy and the gradients of both, with padding, temperature and ignored rows."""
    world = dist.get_world_size()
    g = torch.Generator().manual_seed(0)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        # the last rank holds padding: in part, and (many ranks) alone
        for columns, vocab_size in ((12 * world, 12 * world - 5), (2 * world, 2 * world)):
            whole = (torch.randn(9, columns, generator=g, dtype=torch.float64) * 5).to(dtype)
            whole[2, 1] = -INF
            targets = torch.randint(2, vocab_size, (9,), generator=g)
            targets[4] = -100
            weights = torch.randn(2, 9, generator=g, dtype=torch.float64)
            found = []
            for logits, group in ((whole.clone(), None), (shard(whole), dist.group.WORLD)):
                logits.requires_grad_()
                value = logprobs_from_logits(
                    logits, targets, tp_group=group, vocab_size=vocab_size, temperature=1.7, with_entropy=True
                )
                (value.logprobs * weights[0] + value.entropy * weights[1]).sum().backward()
                found.append((value.logprobs, value.entropy, logits.grad))
            (a, ha, ga), (b, hb, gb) = found
            tight = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 2e-6, "atol": 2e-6}
            torch.testing.assert_close(b, a, **tight)
            torch.testing.assert_close(hb, ha, **tight)
            loose = {"rtol": 2**-7, "atol": 1e-6} if dtype == torch.bfloat16 else tight
            torch.testing.assert_close(gb, shard(ga), **loose)


def case_no_tokens_do_not_hang():
    logits = torch.empty(0, 3, requires_grad=True)
    found = logprobs_from_logits(
        logits, torch.empty(0, dtype=torch.int64), tp_group=dist.group.WORLD, vocab_size=3 * dist.get_world_size()
    )
    found.logprobs.sum().backward()
    assert logits.grad.shape == (0, 3)


def case_gathered_logits_are_refused():
    """With the vocabulary's size they show, and without it nothing sharded is taken."""
    gathered = torch.zeros(1, 8)
    for vocab_size, message in ((8, "whole vocabulary"), (None, "vocab_size is needed")):
        try:
            logprobs_from_logits(gathered, torch.tensor([1]), tp_group=dist.group.WORLD, vocab_size=vocab_size)
        except ValueError as error:
            assert message in str(error), error
        else:
            raise AssertionError("gathered logits were taken for a shard")


def case_one_max_and_one_sum_and_nothing_in_backward():
    calls = []
    all_reduce = dist.all_reduce
    dist.all_reduce = lambda tensor, op=dist.ReduceOp.SUM, group=None: (
        calls.append(op),
        all_reduce(tensor, op=op, group=group),
    )
    try:
        sharded(torch.randn(3, 4 * dist.get_world_size()), [0, 1, 2])
    finally:
        dist.all_reduce = all_reduce
    assert calls == [dist.ReduceOp.MAX, dist.ReduceOp.SUM], calls


CASES = {name: case for name, case in globals().items() if name.startswith("case_")}


def main(path: str) -> None:
    dist.init_process_group("gloo")
    results = {}
    for name, case in CASES.items():
        failure = None
        try:
            case()
        except Exception:  # whatever went wrong is the case's result, and the next case runs
            failure = traceback.format_exc()
        failures = [None] * dist.get_world_size()
        dist.all_gather_object(failures, failure)
        results[name] = next((f for f in failures if f), None)
    if dist.get_rank() == 0:
        Path(path).write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
