"""A batch that every loss can be tried on, and every loss as it is tried."""

from __future__ import annotations

import torch

from megatron_rl.losses import (
    GlobalBatchInfo,
    PolicyBatch,
    build_policy_loss,
    policy_loss_names,
    token_weights,
    weighted_sum,
)
from megatron_rl.losses.segments import Segments

LENGTHS = [1, 7, 3, 12, 2, 5]
GROUPS = [0, 0, 1, 1, 1, 0]
PER_TOKEN = ("logprobs", "old_logprobs", "advantages", "rewards", "groups", "state_values")

# every registered loss with its defaults, and others of its forms; a new loss takes part by being registered
VARIANTS = {name: (name, {}) for name in policy_loss_names()}
VARIANTS |= {
    "dro": ("dro", {"beta": 0.3}),
    "dro sequence": ("dro", {"beta": 0.3, "level": "sequence"}),
    "dro target kl": ("dro", {"beta": 0.3, "target_kl": 0.1}),
    "cispo two bounds": ("cispo", {"clip_ratio_low": 0.1}),
    "gspo wide": ("gspo", {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2}),
    "geo_mean two sided": ("geo_mean", {"two_sided": True}),
    "bypass_mode reinforce": ("bypass_mode", {"kind": "reinforce"}),
    "kl_cov many": ("kl_cov", {"ratio": 0.3, "coef": 2.0}),
    "clip_cov many": ("clip_cov", {"ratio": 0.3, "lower": 0.01}),
    "dro_v tau": ("dro_v", {"tau": 0.4}),
    "agro tau": ("agro", {"tau": 0.4}),
}


def make_loss(variant):
    name, options = VARIANTS[variant]
    return build_policy_loss(name, **options)


def tokens(seed=0, spread=0.5):
    """Six sequences end to end in three fp64 groups, some tokens masked, one sequence wholly."""
    g = torch.Generator().manual_seed(seed)
    n = sum(LENGTHS)
    sequence = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    mask = torch.rand(n, generator=g) > 0.2
    mask[sequence == 4] = False
    old = -torch.rand(n, generator=g, dtype=torch.float64) * 3
    return {
        "logprobs": old + spread * torch.randn(n, generator=g, dtype=torch.float64),
        "old_logprobs": old,
        "advantages": torch.randn(n, generator=g, dtype=torch.float64),
        "rewards": torch.randn(len(LENGTHS), generator=g, dtype=torch.float64)[sequence],
        "groups": torch.tensor(GROUPS)[sequence],
        "state_values": torch.randn(len(LENGTHS), generator=g, dtype=torch.float64)[sequence],
        "mask": mask,
        "sequence": sequence,
    }


def info_and_counts(data):
    counts = torch.zeros(len(LENGTHS), dtype=torch.float64).index_add(0, data["sequence"], data["mask"].double())
    return GlobalBatchInfo(int(counts.sum()), int((counts > 0).sum())), counts


def batch_of(data, rows, counts, cp_group=None, prepared=None):
    """The tokens `rows` as one micro-batch, on this context-parallel rank."""
    present, index = data["sequence"][rows].unique(return_inverse=True)
    if cp_group is not None:  # ranks must agree on how many sequences there are
        present, index = torch.arange(len(counts)), data["sequence"][rows]
    return PolicyBatch.masked(
        **{name: data[name][rows] for name in PER_TOKEN},
        mask=data["mask"][rows],
        segments=Segments(index, counts[present], cp_group),
        prepared=None if prepared is None else prepared[rows],
    )


def prepare(loss, data):
    """What the loss must know of the whole batch, [T], or None."""
    if not loss.prepares:
        return None
    _, counts = info_and_counts(data)
    whole = batch_of(data | {"logprobs": data["logprobs"].detach()}, torch.arange(len(data["mask"])), counts)
    return loss.prepare(whole, torch.Generator().manual_seed(5))


def loss_of(loss, data, rows, mode=None, cp_group=None, prepared=None):
    """Σ weight·value of the tokens `rows`, and their metrics; what one micro-batch contributes."""
    info, counts = info_and_counts(data)
    batch = batch_of(data, rows, counts, cp_group, prepared)
    weights = token_weights(mode or loss.default_agg_mode, info, counts[data["sequence"][rows]], loss_scale_factor=12.0)
    found = loss(batch)
    return weighted_sum(found.values, weights, batch.mask), found.metrics


def whole(loss, data, mode=None):
    """The loss of all tokens in one micro-batch."""
    return loss_of(loss, data, torch.arange(len(data["mask"])), mode, prepared=prepare(loss, data))
