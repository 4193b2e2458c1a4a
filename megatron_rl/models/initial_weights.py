"""Initial weights that depend on the seed and on each parameter's global name alone.

Every layout therefore starts from the same model. The global name, and which part of the parameter a rank
holds, come from the description that Megatron-Core makes for distributed checkpoints.
"""

from __future__ import annotations

import hashlib
import math

import torch
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import apply_factories
from torch import Tensor

from megatron_rl.models.value_head import ValueHead

_VOCABULARY = ("word_embeddings.weight", "output_layer.weight")
_RESIDUAL = ("linear_proj.weight", "linear_fc2.weight")


@torch.no_grad()
def initialize_weights(model: torch.nn.Module, *, seed: int, std: float, num_layers: int, vocab_size: int) -> None:
    """Fill all parameters of a model chunk.

    Norms are 1, biases and value heads 0. Matrices are normal with `std`, those that write into the residual
    stream with std / sqrt(2·num_layers) (GPT-2). Rows of padding past `vocab_size` are 0.

    Raises:
        RuntimeError: a parameter is not described in the model's sharded state.
    """
    for parameter in model.parameters():
        parameter.fill_(math.nan)
    sharded = model.sharded_state_dict()
    apply_factories(sharded)
    for shard in nested_values(sharded):
        if isinstance(shard, ShardedTensor) and shard.data is not None and shard.data.is_floating_point():
            shard.data.copy_(_values(shard, seed, std, num_layers, vocab_size))
    for module in model.modules():
        if isinstance(module, ValueHead):
            for parameter in module.parameters():
                parameter.zero_()
    missed = [name for name, parameter in model.named_parameters() if parameter.isnan().any()]
    if missed:
        raise RuntimeError(f"parameters without initial weights: {', '.join(missed)}")


def _values(shard: ShardedTensor, seed: int, std: float, num_layers: int, vocab_size: int) -> Tensor:
    name = shard.key
    if name.endswith(("norm.weight", "norm_weight")):
        return torch.ones(shard.data.shape)
    if name.endswith("bias"):
        return torch.zeros(shard.data.shape)
    # leading axes that count layers or experts are part of the name
    stacked = shard.prepend_axis_num
    whole_shape = list(shard.global_shape[stacked:])
    padded_rows = whole_shape[0]
    if name.endswith(_VOCABULARY):
        whole_shape[0] = vocab_size
    whole = torch.randn(whole_shape, generator=_generator(seed, name, shard.global_offset[:stacked]))
    whole *= std / math.sqrt(2 * num_layers) if name.endswith(_RESIDUAL) else std
    if padded_rows > whole.shape[0]:
        whole = torch.cat([whole, whole.new_zeros(padded_rows - whole.shape[0], *whole_shape[1:])])
    offsets, sizes = shard.global_offset[stacked:], shard.local_shape
    return whole[tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))].reshape(shard.data.shape)


def _generator(seed: int, name: str, place: tuple[int, ...]) -> torch.Generator:
    digest = hashlib.sha256(repr((seed, name, tuple(int(i) for i in place))).encode()).digest()
    return torch.Generator(device="cpu").manual_seed(int.from_bytes(digest[:7], "big"))
