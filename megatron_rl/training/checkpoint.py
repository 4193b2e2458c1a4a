"""Distributed checkpoints: written by any layout, read by any other.

How checkpoints lie in their folder is in `checkpoint_folder`.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, tensor_parallel
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.dist_checkpointing.utils import add_prefix_for_sharding

from megatron_rl.config import RunConfig
from megatron_rl.models.value_head import ValueHead
from megatron_rl.training.checkpoint_folder import checkpoint_path, point_to, write_description
from megatron_rl.training.optimizer import Optimizer

if TYPE_CHECKING:
    from megatron_rl.training.critic import Critic

VALUE_NETWORK = "value_network."


@dataclass(frozen=True)
class Progress:
    """Where a run stands.

    step: steps done. consumed_rows: training rows they took. skipped_in_row, skipped_total: steps without an update.
    """

    step: int = 0
    consumed_rows: int = 0
    skipped_in_row: int = 0
    skipped_total: int = 0


def save_checkpoint(
    folder: Path,
    progress: Progress,
    model: list[torch.nn.Module],
    optimizer: Optimizer,
    config: RunConfig,
    vocab_size: int,
    *,
    loss_state: dict[str, float] | None = None,
    critic: Critic | None = None,
) -> Path:
    """Write weights, optimizer, schedule, position and random state, and what the loss and the value model keep.

    Called by all ranks together.
    """
    path = checkpoint_path(folder, progress.step)
    if dist.get_rank() == 0:
        path.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    state = _trained_state(model, optimizer)
    state |= {
        "updated": optimizer.updated,
        "loss": loss_state or {},
        "critic": {} if critic is None else critic.state(),
        "scheduler": optimizer.scheduler.state_dict(),
        "progress": asdict(progress),
        "layout": layout_of(config),
        "random": _random_object(_random_state()),
    }
    if critic is not None and critic.model is not None:
        state["value_network"] = _trained_state(critic.model, critic.optimizer, prefix=VALUE_NETWORK)
        state["value_updated"] = critic.optimizer.updated
        state["value_scheduler"] = critic.optimizer.scheduler.state_dict()
    dist_checkpointing.save(state, str(path), async_strategy="mcore")
    if dist.get_rank() == 0:
        write_description(path, config, vocab_size)
        point_to(folder, progress.step)
    dist.barrier()
    return path


def load_checkpoint(
    path: Path,
    model: list[torch.nn.Module],
    optimizer: Optimizer,
    config: RunConfig,
    *,
    critic: Critic | None = None,
) -> tuple[Progress, dict[str, float]]:
    """Go on from a checkpoint: the counterpart of `save_checkpoint`, on this or another layout.

    Returns:
        where the run stands, and the loss's state.

    The random state belongs to ranks; on another layout it is left as the seed made it. Nothing in training
    draws from it today: rows, initial weights and their order have generators of their own.
    """
    stored = dist_checkpointing.load_common_state_dict(str(path))
    optimizer.updated = stored["updated"]
    state = _trained_state(model, optimizer, is_loading=True)
    network = critic is not None and critic.model is not None
    if network:
        critic.optimizer.updated = stored["value_updated"]
        state["value_network"] = _trained_state(critic.model, critic.optimizer, prefix=VALUE_NETWORK, is_loading=True)
    same_layout = stored["layout"] == layout_of(config)
    if same_layout:
        state["random"] = _random_object(None)
    with torch.no_grad():
        loaded = dist_checkpointing.load(state, str(path))
        _load_trained(model, optimizer, loaded)
        if network:
            _load_trained(critic.model, critic.optimizer, loaded["value_network"])
            critic.optimizer.scheduler.load_state_dict(loaded["value_scheduler"])
    optimizer.scheduler.load_state_dict(loaded["scheduler"])
    if critic is not None:
        critic.load_state(loaded["critic"])
    if same_layout:
        _restore_random(loaded["random"])
    return Progress(**loaded["progress"]), loaded["loss"]


def load_weights(path: Path, model: list[torch.nn.Module]) -> None:
    """Start from the weights of a checkpoint; call before the optimizer is made, which copies them.

    A value head begins as it is: the checkpoint may be of a policy without one.
    """
    state, heads = _model_state(model), {}
    for (part, content), chunk in zip(state.items(), model, strict=True):
        own = {
            f"{name}.{parameter}"
            for name, module in chunk.module.named_modules()
            if isinstance(module, ValueHead)
            for parameter, _ in module.named_parameters()
        }
        heads[part] = {name: content.pop(name).data for name in own}
    with torch.no_grad():
        loaded = dist_checkpointing.load(state, str(path))
        for part, head in heads.items():
            loaded[part] |= head
        _load_model(model, loaded)


def layout_of(config: RunConfig) -> dict[str, Any]:
    """What decides which rank holds what."""
    parallel = config.parallel
    return {
        "world_size": dist.get_world_size(),
        "tensor": parallel.tensor_model_parallel_size,
        "pipeline": parallel.pipeline_model_parallel_size,
        "virtual": parallel.virtual_pipeline_model_parallel_size,
        "context": parallel.context_parallel_size,
        "expert": parallel.expert_model_parallel_size,
        "expert_tensor": parallel.expert_tensor_parallel_size,
    }


def _format() -> dict[str, Any]:
    """The only optimizer format that every layout can read; prefixes would tie it to the number of optimizers.

    Made anew for each call: Megatron-Core adds the process groups of the moment to it.
    """
    return {"distrib_optim_sharding_type": "fully_reshardable", "chained_optim_avoid_prefix": True}


def _trained_state(
    model: list[torch.nn.Module], optimizer: Optimizer, *, prefix: str = "", is_loading: bool = False
) -> dict[str, Any]:
    """Weights and optimizer; with a prefix to their names in the checkpoint, beside those of another model."""
    state = _model_state(model)
    add_prefix_for_sharding(state, prefix)
    if not optimizer.updated:
        return state
    optimizer_state = optimizer.megatron.sharded_state_dict(state, is_loading=is_loading, metadata=_format())
    return state | {"optimizer": optimizer_state}


def _load_trained(model: list[torch.nn.Module], optimizer: Optimizer, loaded: dict[str, Any]) -> None:
    _load_model(model, loaded)
    if optimizer.updated:
        _set_learning_rates(loaded["optimizer"], optimizer)
        optimizer.megatron.load_state_dict(loaded["optimizer"])


def _model_state(model: list[torch.nn.Module]) -> dict[str, Any]:
    if len(model) == 1:
        return {"model": model[0].module.sharded_state_dict(metadata=_format())}
    return {f"model{i}": chunk.module.sharded_state_dict(metadata=_format()) for i, chunk in enumerate(model)}


def _load_model(model: list[torch.nn.Module], loaded: dict[str, Any]) -> None:
    for i, chunk in enumerate(model):
        chunk.module.load_state_dict(loaded["model" if len(model) == 1 else f"model{i}"])


def _set_learning_rates(state: Any, optimizer: Optimizer) -> None:
    """Let the configured learning rates stand: Megatron-Core finds its parameter groups again by them."""
    if isinstance(state, dict) and "param_groups" in state:
        for group in state["param_groups"]:
            group |= {"max_lr": optimizer.max_lr, "min_lr": optimizer.min_lr}
    elif isinstance(state, dict | list):
        for part in state.values() if isinstance(state, dict) else state:
            _set_learning_rates(part, optimizer)


def _random_object(state: dict[str, Any] | None) -> ShardedObject:
    """One random state a rank."""
    return ShardedObject("random", state, (dist.get_world_size(),), (dist.get_rank(),))


def _random_state() -> dict[str, Any]:
    name, keys, position, has_gauss, gauss = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(),
        "tracker": tensor_parallel.get_cuda_rng_tracker().get_states(),
    }


def _restore_random(state: dict[str, Any]) -> None:
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    torch.cuda.set_rng_state(state["cuda"])
    tensor_parallel.get_cuda_rng_tracker().set_states(state["tracker"])
