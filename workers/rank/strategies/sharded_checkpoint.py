"""Checkpoints of DDP, FSDP1 and FSDP2 by torch.distributed.checkpoint: each rank saves and loads its own shards."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict


def save(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], folder: Path, in_stages: bool = False) -> None:
    """Write master weights and optimizer state to a checkpoint. Collective. `in_stages`: ranks have different parts of
    the model."""
    with _unwrapped_failure():
        state_dict_saver.save(_state(model, optimizers, _options(in_stages)), checkpoint_id=folder)


def load(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], folder: Path, in_stages: bool = False) -> None:
    """Load weights and optimizer state into a model and optimizers of the same shape. Collective."""
    options = _options(in_stages)
    state = _state(model, optimizers, options)
    with _unwrapped_failure():
        state_dict_loader.load(state, checkpoint_id=folder)
    set_state_dict(
        model, optimizers, model_state_dict=state["model"], optim_state_dict=state["optimizer"], options=options
    )


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
    """Views of the weights and optimizer moments on this rank; optimizers without state get theirs by this
    call."""
    weights, moments = get_state_dict(model, optimizers, options=options)
    return {"model": weights, "optimizer": moments}
