"""Checkpoints of DDP, FSDP1 and FSDP2 by torch.distributed.checkpoint: each rank saves and loads its own shards."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.amp import GradScaler
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from shardtune.workers.rank.strategies.float8_gather import as_plain


@dataclass(frozen=True)
class CheckpointParts:
    """Options for the contents of a rank's checkpoint, about frozen weights, loss scale and pipeline stages."""

    in_stages: bool = False
    """Whether ranks hold different blocks of the model (pipeline stages), and not only shards of the same ones."""
    trained_only: bool = False
    """Whether frozen weights are left out of the checkpoint: the trainer loads them from the base model."""
    scaler: GradScaler | None = None
    """Dynamic loss scale; None if the precision needs none."""


ALL_PARTS = CheckpointParts()
_SCALE = "loss_scale"


def save(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], folder: Path, parts: CheckpointParts = ALL_PARTS
) -> None:
    """Write master weights and optimizer state to a checkpoint. All ranks must call this together."""
    state = _state(model, optimizers, _options(parts.in_stages))
    scale = _scale_of(parts.scaler)
    with _unwrapped_failure():
        state_dict_saver.save((_without_frozen(state) if parts.trained_only else state) | scale, checkpoint_id=folder)


def load(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], folder: Path, parts: CheckpointParts = ALL_PARTS
) -> None:
    """Load weights and optimizer state into a model and optimizers of the same shape. All ranks must call this
    together."""
    options = _options(parts.in_stages)
    state = _state(model, optimizers, options)
    # Frozen weights stay in `state` as they are, so that backends find every weight that they ask for.
    loaded = (_without_frozen(state) if parts.trained_only else state) | _scale_of(parts.scaler)
    with _unwrapped_failure():
        state_dict_loader.load(loaded, checkpoint_id=folder)
    set_state_dict(
        model,
        optimizers,
        model_state_dict=state["model"] | loaded["model"],
        optim_state_dict=loaded["optimizer"],
        options=options,
    )
    if parts.scaler is not None:
        parts.scaler.load_state_dict(loaded[_SCALE])


def _scale_of(scaler: GradScaler | None) -> dict[str, Any]:
    """State of the dynamic loss scale, for a checkpoint; empty if there is none."""
    return {} if scaler is None else {_SCALE: scaler.state_dict()}


def _without_frozen(state: dict[str, Any]) -> dict[str, Any]:
    """Keep only those parts of a state that a checkpoint of trained weights needs: the weights that the optimizer
    updates, and the optimizer's own state."""
    trained = state["optimizer"]["state"]
    weights = {name: value for name, value in state["model"].items() if name in trained}
    return {"model": weights, "optimizer": state["optimizer"]}


def _options(in_stages: bool) -> StateDictOptions:
    # Unflattened, a list of all parameters shares one set of options and would differ between stages; flattened, each
    # parameter has its own.
    return StateDictOptions(flatten_optimizer_state_dict=in_stages)


@contextlib.contextmanager
def _unwrapped_failure() -> Iterator[None]:
    """Context that raises the exception of the first rank whose save or load failed."""
    # torch wraps it (2.13) in a BaseException, which says less and passes every `except Exception`.
    try:
        yield
    except CheckpointException as error:
        cause, _ = error.failures[min(error.failures)]
        raise cause from error


def _state(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], options: StateDictOptions) -> dict[str, Any]:
    """Weights and optimizer moments on this rank, as views. If the optimizer has no state yet, this call creates it."""
    weights, moments = get_state_dict(model, optimizers, options=options)
    return {"model": {name: as_plain(value) for name, value in weights.items()}, "optimizer": moments}
