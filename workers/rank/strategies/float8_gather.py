"""Gathers of FSDP2 in float8: shards that torchao casts before a gather, and the scales with which it casts them."""

import importlib
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from shardtune.api_schemas.training.float8 import FLOAT8_PACKAGE
from shardtune.workers.rank.classify import NumericsError


class Float8Gather:
    """Scales of a sharded model's float8 weights. Nothing without `float8_gather`."""

    def __init__(self, model: nn.Module, gathers: bool) -> None:
        self._model, self._layers = model, list[nn.Module]()
        if not gathers:
            return
        self._layers = [module for module in model.modules() if is_cast_for_gather(getattr(module, "weight", None))]
        if not self._layers:
            raise NumericsError(
                "float8_gather (true) gathers the weights of float8 layers, and no weight of the sharded model is cast before a "
                "gather; set float8_gather to false"
            )
        self._precompute: Any = importlib.import_module(
            f"{FLOAT8_PACKAGE}.float8"
        ).precompute_float8_dynamic_scale_for_fsdp

    def refresh(self) -> None:
        """Compute the scale of every weight from all shards, in one all-reduce. Call this whenever weights have changed:
        torchao casts with the last scale, and values above it are cut off without a word.

        Raises:
            NumericsError: a weight is gathered at this moment, which torchao passes over.
        """
        if not self._layers:
            return
        gathered = sum(not isinstance(layer.weight, DTensor) for layer in self._layers)
        if gathered:
            raise NumericsError(
                f"float8_gather (true) scales sharded weights after each step, and {gathered} of {len(self._layers)} are still "
                "gathered; set float8_gather to false"
            )
        self._precompute(self._model)


def is_cast_for_gather(weight: object) -> bool:
    """Whether the shards of a weight are tensors that torchao casts to float8 before they are gathered."""
    return isinstance(weight, DTensor) and hasattr(weight.to_local(), "fsdp_pre_all_gather")


def master_shard(weight: DTensor) -> torch.Tensor:
    """This rank's shard of a weight as a plain tensor that shares its memory, detached from gradients. torchao's tensors
    do not support all operations, and checkpoints must not contain their class."""
    shard: Any = weight.to_local().detach()
    plain: torch.Tensor = shard._tensor.detach() if is_cast_for_gather(weight) else shard
    return plain


def as_plain(value: Any) -> Any:
    """Return a value of a state dict without torchao's tensors: a weight that is cast for gathers as a DTensor of its
    master shards, which shares their memory; other values as they are."""
    if not is_cast_for_gather(value):
        return value
    return DTensor.from_local(
        master_shard(value),
        value.device_mesh,
        value.placements,
        run_check=False,
        shape=value.shape,
        stride=value.stride(),
    )
