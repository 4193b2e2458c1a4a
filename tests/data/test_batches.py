"""Order, packing, labels and context-parallel shares."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from megatron_rl.config.rules import sequence_divisor
from megatron_rl.data.global_batch import BatchLayout, GlobalBatch
from megatron_rl.data.micro_batch import IGNORE_INDEX, PackedSequence, pack_micro_batch
from megatron_rl.data.order import RowOrder
from megatron_rl.data.packing import pack
from megatron_rl.data.samples import Sample
from megatron_rl.data.zigzag import zigzag_positions


def sample(length, prompt_length=1, first=0, mask=None):
    n = length - prompt_length
    return Sample(
        token_ids=np.arange(first, first + length),
        prompt_length=prompt_length,
        reward=1.0,
        group="p",
        loss_mask=np.ones(n, bool) if mask is None else np.array(mask, bool),
        old_logprobs=-np.arange(1, n + 1, dtype=np.float32),
    )


# --- order


def test_rows_go_on_after_resuming():
    order = RowOrder(10, seed=0, shuffle=False)
    assert [order.rows(2 * step, 2).tolist() for step in (0, 1, 2)] == [[0, 1], [2, 3], [4, 5]]
    assert order.rows(8, 4).tolist() == [8, 9, 0, 1]


def test_every_row_once_an_epoch_in_an_order_of_its_own():
    order = RowOrder(10, seed=7)
    rows = np.concatenate([order.rows(4 * step, 4) for step in range(10)])
    epochs = rows.reshape(4, 10)
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs.tolist())
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 4
    assert (RowOrder(10, seed=7).rows(12, 4) == order.rows(12, 4)).all()
    assert (RowOrder(10, seed=8).rows(0, 10) != order.rows(0, 10)).any()


def test_rows_of_a_group_stay_together():
    """Batches take 4 rows and the rest of the last group, and each epoch has every row once."""
    groups = list("abcabcaddd")
    order, consumed, epochs = RowOrder(10, seed=3, groups=groups), 0, []
    for _ in range(12):
        rows = order.rows(consumed, 4)
        assert len(rows) >= 4
        names = [groups[i] for i in rows]
        boundaries = sum(a != b for a, b in zip(names, names[1:], strict=False)) + 1
        assert boundaries == len(set(names)) or consumed // 10 != (consumed + len(rows) - 1) // 10
        epochs += rows.tolist()
        consumed += len(rows)
        assert consumed % 10 == 0 or groups[order.rows(consumed, 1)[0]] != names[-1]
    for first in range(0, len(epochs) - 9, 10):
        assert sorted(epochs[first : first + 10]) == list(range(10))
    assert epochs[:10] != epochs[10:20]


def test_whole_groups_in_the_order_of_the_files():
    order = RowOrder(6, seed=0, shuffle=False, groups=list("ababcc"))
    assert order.rows(0, 1).tolist() == [0, 2]
    assert order.rows(2, 3).tolist() == [1, 3, 4, 5]


# --- packing


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("ranks", "multiple"), [(1, 1), (2, 1), (4, 1), (3, 4)])
def test_packing_holds_everything_once_and_in_step(seed, ranks, multiple):
    lengths = np.minimum(np.random.default_rng(seed).lognormal(4, 1, 200).astype(int) + 1, 1024).tolist()
    shares = pack(lengths, 1024, ranks, multiple)
    assert sorted(i for share in shares for bin in share for i in bin) == list(range(200))
    assert all(sum(lengths[i] for i in bin) <= 1024 for share in shares for bin in share)
    counts = {len(share) for share in shares}
    assert len(counts) == 1
    assert counts.pop() % multiple == 0
    loads = [sum(lengths[i] for bin in share for i in bin) for share in shares]
    assert max(loads) <= 1.1 * sum(loads) / ranks


def test_ranks_run_the_same_number_of_micro_batches():
    shares = pack([95] * 5 + [20] * 5, 100, 2)
    assert len(shares[0]) == len(shares[1]) == 3
    shares = pack([100] * 8 + [1000] * 8, 1000, 2)
    assert len(shares[0]) == len(shares[1])


def test_fewer_sequences_than_ranks_leave_empty_micro_batches():
    assert sorted(map(str, pack([5], 10, 2))) == ["[[0]]", "[[]]"]


def test_a_sequence_that_cannot_fit_is_an_error():
    with pytest.raises(ValueError, match="11 tokens does not fit a micro-batch of 10"):
        pack([3, 11], 10, 1)


# --- context parallelism


def test_zigzag_of_eight_over_two():
    assert zigzag_positions([8], 2, 0).tolist() == [0, 1, 6, 7]
    assert zigzag_positions([8], 2, 1).tolist() == [2, 3, 4, 5]


def test_the_divisor_of_tensor_and_context_parallelism():
    assert sequence_divisor(4, 2) == 8
    assert sequence_divisor(1, 2) == 4
    assert sequence_divisor(3, 2) == 12
    assert sequence_divisor(8, 1) == 1


def micro_batch(samples, cp_size=1, cp_rank=0, divisor=1, total=1):
    sequences, slot = [], 0
    for s in samples:
        sequences.append(PackedSequence(s, slot, s.loss_mask))
        slot += s.completion_length
    return pack_micro_batch(sequences, sequence_divisor=divisor, total_divisor=total, cp_size=cp_size, cp_rank=cp_rank)


def test_labels_cross_the_seams_of_context_parallel_shares():
    """Rank 0 owns positions 0, 1, 6, 7 of eight: each must know the token after it, also a neighbour's."""
    found = micro_batch([sample(8)], cp_size=2, cp_rank=0, divisor=4)
    assert found.labels.tolist() == [1, 2, 7, IGNORE_INDEX]
    assert micro_batch([sample(8)], cp_size=2, cp_rank=1, divisor=4).labels.tolist() == [3, 4, 5, 6]


@pytest.mark.parametrize("length", range(2, 20))
@pytest.mark.parametrize("cp", [2, 4])
def test_context_parallel_shares_are_the_whole(length, cp):
    """Whatever the length, the shares of all ranks hold each label, value and slot once, as one rank does."""
    samples = [sample(length), sample(5, 2, first=20)]
    whole = micro_batch(samples, divisor=2 * cp)
    shares = [micro_batch(samples, cp, rank, divisor=2 * cp) for rank in range(cp)]
    owned = np.concatenate([zigzag_positions(whole.lengths, cp, rank) for rank in range(cp)])
    for name in (
        "token_ids",
        "labels",
        "position_ids",
        "mask",
        "starts",
        "sequence_index",
        "slots",
    ):
        joined = torch.cat([getattr(share, name) for share in shares])
        assert torch.equal(joined[torch.from_numpy(np.argsort(owned))], getattr(whole, name)), name


def test_contents_of_a_packed_micro_batch():
    found = micro_batch([sample(4, 2, first=10), sample(3, 1, first=50, mask=[0, 1])], total=8)
    assert found.token_ids.tolist() == [10, 11, 12, 13, 50, 51, 52, 0]
    assert found.labels.tolist() == [-100, 12, 13, -100, -100, 52, -100, -100]
    assert found.mask.tolist() == [False, True, True, False, False, True, False, False]
    assert found.position_ids.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert found.starts.tolist() == [False, True, False, False, True, False, False, False]
    assert found.pick(torch.tensor([5.0, 6, 7, 8])).tolist() == [0, 5, 6, 0, 7, 8, 0, 0]
    assert found.sequence_index.tolist() == [0] * 4 + [1] * 4
    assert found.sequence_tokens.tolist() == [2, 1]
    assert found.slots.tolist() == [-1, 0, 1, -1, 2, 3, -1, -1]
    assert found.lengths == (4, 4)


def test_a_micro_batch_without_sequences_is_padding():
    found = micro_batch([], cp_size=2, cp_rank=1, divisor=4)
    assert len(found.token_ids) == 2
    assert not found.mask.any()


@pytest.mark.parametrize("budget", [64, 32, 22])
def test_the_counts_of_a_batch_do_not_depend_on_the_layout(budget):
    samples = [sample(n, 1, mask=None if n % 3 else [0] * (n - 1)) for n in range(2, 21)]
    batch = GlobalBatch(samples)
    assert batch.info.num_sequences == 13
    for ranks in (1, 2):
        micro_batches = [
            m
            for rank in range(ranks)
            for m in batch.micro_batches(BatchLayout(budget, data_parallel_size=ranks, data_parallel_rank=rank))
        ]
        assert sum(int(m.mask.sum()) for m in micro_batches) == batch.info.num_tokens
        assert sum(int((m.sequence_tokens > 0).sum()) for m in micro_batches) == batch.info.num_sequences
        slots = torch.cat([m.slots[m.slots >= 0] for m in micro_batches])
        assert sorted(slots.tolist()) == list(range(batch.num_slots))
        assert math.isclose(sum(len(m.token_ids) for m in micro_batches), batch.num_tokens, abs_tol=ranks * 60)


def test_rejected_tokens_do_not_count():
    samples = [sample(4), sample(3), sample(5)]
    rejected = np.array([1, 0, 0, 1, 1, 0, 0, 0, 1], bool)
    batch = GlobalBatch(samples, rejected=rejected)
    assert batch.mask.tolist() == (~rejected).tolist()
    assert batch.sequence_tokens.tolist() == [2, 0, 3]
    assert (batch.info.num_tokens, batch.info.num_sequences) == (5, 2)
    (micro_batch,) = batch.micro_batches(BatchLayout(64))
    assert micro_batch.mask.sum() == 5
    assert micro_batch.sequence_tokens.sum() == 5
    assert sorted(micro_batch.slots[micro_batch.mask].tolist()) == np.flatnonzero(~rejected).tolist()
    assert micro_batch.starts.sum() == 3
