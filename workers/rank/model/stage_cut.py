"""Cut of one pipeline stage out of a whole model on the meta device.

The stage still calls the model's own forward: masks, positions, scales and the loss are the model's code on every stage. Blocks
of earlier stages return the received hidden states, blocks of later ones end the forward pass, and tables of other stages
give zeros.
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
"""Loss function of one micro batch, of the same form as `strategies.base.Loss`."""


@dataclass
class _Relay:
    """Hidden states that the previous pipeline stage sent for the current micro batch."""

    received: torch.Tensor | None = None


class _LeftStageError(Exception):
    """Exception that ends the forward pass when the stage's last block has run. It signals no error."""

    def __init__(self, hidden: torch.Tensor) -> None:
        super().__init__()
        self.hidden = hidden


class Stage(nn.Module):
    """Pipeline stage of a model. Its inputs are tokens and, except in the first stage, hidden states [samples,
    positions, width]; it returns hidden states, or in the last stage the loss."""

    def __init__(self, model: nn.Module, loss: _Loss, relay: _Relay) -> None:
        super().__init__()
        self.model = model
        self._loss, self._relay = loss, relay

    def forward(self, hidden: torch.Tensor | None = None, *, tokens: torch.Tensor) -> torch.Tensor:
        """Run the stage's forward pass on one micro batch."""
        self._relay.received = hidden
        try:
            loss = self._loss(self.model, tokens)
            return loss.full_tensor() if isinstance(loss, DTensor) else loss
        except _LeftStageError as exit_signal:
            hidden = exit_signal.hidden.contiguous()
            # torch detaches a stage's output in place where gradients of weights come later, and cannot do so with a view (2.13).
            return hidden.clone() if hidden._is_view() else hidden
        finally:
            self._relay.received = None


@dataclass(frozen=True)
class Cut:
    """Pipeline stage cut out of a model, with its blocks and the names of its parameters in the whole model."""

    module: Stage
    blocks: list[nn.Module]
    names: dict[str, str]
    """Names of parameters in the whole model, by their names in the stage."""
    twins: tuple[str, ...]
    """Names of tied parameters that the first and the last stage both hold."""


def cut(model: nn.Module, plan: StagePlan, index: int, stages: int, loss: _Loss, dtype: torch.dtype) -> Cut:
    """Cut stage number `index` of `stages` out of the model. The stage uses the model's own modules, and the model
    itself is not changed.

    `dtype`: dtype of the hidden states.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    twins = _parameters(model, plan.before) & _parameters(model, plan.after)
    own_tables = (plan.before if index == 0 else frozenset()) | (plan.after if index == stages - 1 else frozenset())
    relay, blocks = _Relay(), repeated_blocks(model)
    sizes = blocks_of_stages(len(blocks), stages)
    first = sum(sizes[:index])
    own_blocks = blocks[first : first + sizes[index]]
    other_tables = (plan.before | plan.after) - own_tables
    part = _copy(model, [*(name for name, _ in blocks), *other_tables])
    for number, (name, block) in enumerate(blocks):
        if not first <= number < first + sizes[index]:
            _replace(part, name, _with_attributes(block, _Before(relay) if number < first else _After()))
    for name in other_tables:
        _replace(part, name, _stand_in(model.get_submodule(name), dtype))
    module = Stage(part, loss, relay)
    parameters = dict(module.named_parameters())
    return Cut(
        module,
        [block for _, block in own_blocks],
        {name: names[id(parameter)] for name, parameter in parameters.items()},
        tuple(name for name, parameter in parameters.items() if id(parameter) in twins),
    )


def _copy(module: nn.Module, names: Iterable[str]) -> nn.Module:
    """Copy as little of a module tree as is needed to replace the modules of the given names. All other modules are
    shared with the original."""
    # A shallow copy: parameters must stay the model's own objects, whose names are looked up by identity.
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    inner: dict[str, list[str]] = {}
    for owner, dot, inner_name in (name.partition(".") for name in names):
        if dot:
            inner.setdefault(owner, []).append(inner_name)
    for key, inner_names in inner.items():
        twin._modules[key] = _copy(module.get_submodule(key), inner_names)
    return twin


def _parameters(model: nn.Module, names: frozenset[str]) -> set[int]:
    return {id(parameter) for name in names for parameter in model.get_submodule(name).parameters(recurse=False)}


class _Before(nn.Module):
    """Module that stands for a block of an earlier stage: it returns the hidden states that this stage received."""

    def __init__(self, relay: _Relay) -> None:
        super().__init__()
        self._relay = relay

    def forward(self, *_args: Any, **_kwargs: Any) -> torch.Tensor:
        assert self._relay.received is not None
        return self._relay.received


class _After(nn.Module):
    """Module that stands for a block of a later stage: it ends the forward pass."""

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        raise _LeftStageError(args[0] if args else kwargs["hidden_states"])


class _Zeros(nn.Module):
    """Module that stands for a table or matrix of another stage and returns zeros. Masks and positions depend on the
    shape of hidden states, not on their values."""

    def __init__(self, width: int, dtype: torch.dtype, *, adds_axis: bool) -> None:
        super().__init__()
        self._width, self._dtype, self._adds_axis = width, dtype, adds_axis

    def forward(self, value: torch.Tensor, *_args: Any, **_kwargs: Any) -> torch.Tensor:
        shape = value.shape if self._adds_axis else value.shape[:-1]
        return torch.zeros(*shape, self._width, dtype=self._dtype, device=value.device)


def _stand_in(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Make the module that stands for a table, matrix or norm of another pipeline stage."""
    if isinstance(module, nn.Embedding):
        return _Zeros(module.embedding_dim, dtype, adds_axis=True)
    if isinstance(module, nn.Linear):
        return _Zeros(module.out_features, dtype, adds_axis=False)
    return nn.Identity()


def _with_attributes(block: nn.Module, stand_in: nn.Module) -> nn.Module:
    """Copy a block's plain attributes to the module that stands for the block, because models read some of them (such
    as `attention_type`)."""
    for key, value in vars(block).items():
        if not key.startswith("_") and key not in vars(stand_in) and not callable(value):
            setattr(stand_in, key, value)
    return stand_in


def _replace(model: nn.Module, name: str, replacement: nn.Module) -> None:
    owner, _, key = name.rpartition(".")
    setattr(model.get_submodule(owner), key, replacement)
