"""Worker: every loss with its sequences spread over data-parallel and context-parallel ranks, against one process.

    torchrun --nproc-per-node 4 tests/workers/spread_losses.py RESULT.json

Two data-parallel ranks hold other sequences, and two context-parallel ranks share each of them, token by token. Rank
0 writes what was wrong, by loss and aggregation.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist


def main(path: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    from megatron_rl.losses import AGG_MODES
    from megatron_rl.metrics.reduce import reduce_metrics
    from tests.losses.cases import VARIANTS, loss_of, make_loss, prepare, tokens, whole

    rank = dist.get_rank()
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    dp_rank, cp_rank = divmod(rank, 2)
    wrong = {}
    for variant in VARIANTS:
        for mode in AGG_MODES:
            data, loss = tokens(seed=4), make_loss(variant)
            for name in ("logprobs", "state_values"):
                data[name].requires_grad_()
            mine = (data["sequence"] % 2 == dp_rank) & (torch.arange(len(data["mask"])) % 2 == cp_rank)
            rows = mine.nonzero().squeeze(1)
            value, metrics = loss_of(loss, data, rows, mode, groups[dp_rank], prepare(loss, data))
            value.backward()
            found = [value.detach(), *(_grad(data[name]) for name in ("logprobs", "state_values"))]
            for tensor in found:
                dist.all_reduce(tensor)
            numbers = reduce_metrics([metrics], dist.group.WORLD).numbers

            for name in ("logprobs", "state_values"):
                data[name] = data[name].detach().requires_grad_()
            value, metrics = whole(loss, data, mode)
            value.backward()
            expected = [value.detach(), *(_grad(data[name]) for name in ("logprobs", "state_values"))]
            alone = reduce_metrics([metrics], None).numbers
            problems = [
                what
                for what, a, b in zip(("value", "gradient", "value gradient"), found, expected, strict=True)
                if not torch.allclose(a, b, rtol=1e-11, atol=1e-14)
            ]
            problems += [
                f"{name}: {numbers[name]} != {alone[name]}"
                for name in alone
                # quantiles are kept in fp32
                if (numbers[name] is None) != (alone[name] is None)
                or (alone[name] is not None and abs(numbers[name] - alone[name]) > 1e-6 * max(1, abs(alone[name])))
            ]
            if problems:
                wrong[f"{variant} {mode}"] = problems
    if rank == 0:
        Path(path).write_text(json.dumps({"tried": len(VARIANTS) * len(AGG_MODES), "wrong": wrong}))
    dist.destroy_process_group()


def _grad(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


if __name__ == "__main__":
    main(sys.argv[1])
