"""Pipeline parallel: of a whole model on the meta device, what one stage runs.

The stage still calls the model's own forward: masks, positions, scales and the loss are the model's code on every stage. Blocks
of other stages hand over what was received, or end the forward pass; tables of other stages give zeros.
"""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from shardtune.api_schemas.strategies.pipeline_parallel import blocks_of_stages
from shardtune.workers.blocks.prepare import repeated_blocks
from shardtune.workers.rank.model.stage_plan import StagePlan

_Loss = Callable[[nn.Module, Any], torch.Tensor]
"""See `strategies.base.Loss`."""


@dataclass
class _Relay:
    """What the stage before has sent for the micro batch in work."""

    received: torch.Tensor | None = None


class _LeftStageError(Exception):
    """No error: the stage's last block has run."""

    def __init__(self, hidden: torch.Tensor) -> None:
        super().__init__()
        self.hidden = hidden


class Stage(nn.Module):
    """Takes hidden states [samples, positions, width] (none in the first stage) and tokens; gives hidden states, or the loss."""

    def __init__(self, model: nn.Module, loss: _Loss, relay: _Relay) -> None:
        super().__init__()
        self.model = model
        self._loss, self._relay = loss, relay

    def forward(self, hidden: torch.Tensor | None = None, *, tokens: torch.Tensor) -> torch.Tensor:
        """One micro batch."""
        self._relay.received = hidden
        try:
            loss = self._loss(self.model, tokens)
            return loss.full_tensor() if isinstance(loss, DTensor) else loss
        except _LeftStageError as left:
            hidden = left.hidden.contiguous()
            # torch detaches in place what a stage gave, where gradients of weights come later, and cannot with a view (2.13).
            return hidden.clone() if hidden._is_view() else hidden
        finally:
            self._relay.received = None


@dataclass(frozen=True)
class Cut:
    """A stage, and what of it the whole model knows otherwise."""

    module: Stage
    blocks: list[nn.Module]
    names: dict[str, str]
    """Of its parameters, in the whole model."""
    twins: tuple[str, ...]
    """Those that the first and the last stage both have: the tied tables."""


def cut(model: nn.Module, plan: StagePlan, index: int, stages: int, loss: _Loss, dtype: torch.dtype) -> Cut:
    """One of the stages, whose modules are the model's own; the model stays whole. `dtype`: of the hidden states."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    twins = _parameters(model, plan.before) & _parameters(model, plan.after)
    held = (plan.before if index == 0 else frozenset()) | (plan.after if index == stages - 1 else frozenset())
    relay, blocks = _Relay(), repeated_blocks(model)
    sizes = blocks_of_stages(len(blocks), stages)
    first = sum(sizes[:index])
    own = blocks[first : first + sizes[index]]
    others = (plan.before | plan.after) - held
    part = _copy(model, [*(name for name, _ in blocks), *others])
    for number, (name, block) in enumerate(blocks):
        if not first <= number < first + sizes[index]:
            _replace(part, name, _as(block, _Before(relay) if number < first else _After()))
    for name in others:
        _replace(part, name, _stand_in(model.get_submodule(name), dtype))
    module = Stage(part, loss, relay)
    found = dict(module.named_parameters())
    return Cut(
        module,
        [block for _, block in own],
        {name: names[id(parameter)] for name, parameter in found.items()},
        tuple(name for name, parameter in found.items() if id(parameter) in twins),
    )


def _copy(module: nn.Module, names: Iterable[str]) -> nn.Module:
    """One in which the modules of these names can be replaced; all else is the same."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    inner: dict[str, list[str]] = {}
    for owner, dot, rest in (name.partition(".") for name in names):
        if dot:
            inner.setdefault(owner, []).append(rest)
    for key, rests in inner.items():
        twin._modules[key] = _copy(module.get_submodule(key), rests)
    return twin


def _parameters(model: nn.Module, names: frozenset[str]) -> set[int]:
    return {id(one) for name in names for one in model.get_submodule(name).parameters(recurse=False)}


class _Before(nn.Module):
    """A block of an earlier stage."""

    def __init__(self, relay: _Relay) -> None:
        super().__init__()
        self._relay = relay

    def forward(self, *_args: Any, **_kwargs: Any) -> torch.Tensor:
        assert self._relay.received is not None
        return self._relay.received


class _After(nn.Module):
    """A block of a later stage."""

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        raise _LeftStageError(args[0] if args else kwargs["hidden_states"])


class _Zeros(nn.Module):
    """A table or matrix of another stage: masks and positions want hidden states of the right shape, and no values."""

    def __init__(self, width: int, dtype: torch.dtype, *, adds_axis: bool) -> None:
        super().__init__()
        self._width, self._dtype, self._adds_axis = width, dtype, adds_axis

    def forward(self, value: torch.Tensor, *_args: Any, **_kwargs: Any) -> torch.Tensor:
        shape = value.shape if self._adds_axis else value.shape[:-1]
        return torch.zeros(*shape, self._width, dtype=self._dtype, device=value.device)


def _stand_in(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """What runs in its place, if anything does."""
    if isinstance(module, nn.Embedding):
        return _Zeros(module.embedding_dim, dtype, adds_axis=True)
    if isinstance(module, nn.Linear):
        return _Zeros(module.out_features, dtype, adds_axis=False)
    return nn.Identity()


def _as(block: nn.Module, other: nn.Module) -> nn.Module:
    """With the block's plain attributes, which models look at (`attention_type`)."""
    for key, value in vars(block).items():
        if not key.startswith("_") and key not in vars(other) and not callable(value):
            setattr(other, key, value)
    return other


def _replace(model: nn.Module, name: str, other: nn.Module) -> None:
    owner, _, key = name.rpartition(".")
    setattr(model.get_submodule(owner), key, other)
