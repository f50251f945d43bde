"""Check whether a model's blocks can be spread over pipeline stages: traces a forward pass on the meta device.

Only hidden states may pass from block to block: any other value that depends on weights would have to be sent as well.
"""

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.workload import Workload
from shardtune.workers.blocks.prepare import repeated_blocks
from shardtune.workers.rank.model import build as models
from shardtune.workers.rank.model import shared_heads

_TOKENS = 8
_DIFFERENT = ("ernie4_5_moe", "llama4_text")
"""Model types for which pipeline parallelism is disabled: cut into stages they trained differently or failed
(transformers 5.23), for no visible reason.

See `test_every_model_type_that_can_be_cut_trains_the_same`.
"""


class StagePlan(NamedTuple):
    """Facts about a model that are needed to cut it into pipeline stages."""

    width: int
    """Width of the hidden states."""
    before: frozenset[str]
    """Names of modules with parameters that run before the first block; the first stage holds them."""
    after: frozenset[str]
    """Names of modules with parameters that run after the last block; the last stage holds them."""


class StagedBlocks(NamedTuple):
    """Fields of `ModelSummary` that say whether pipeline parallelism is possible."""

    pipeline_blocks: int
    """Number of blocks that can be spread over pipeline stages; 1 if the model cannot be cut."""
    pipeline_note: str | None
    """Reason why the model cannot be cut into pipeline stages; None if it can."""


def of(spec: ModelSpec, workload: Workload) -> tuple[StagePlan | None, str | None]:
    """Build the model without memory for weights and plan its cut into pipeline stages; returns the plan or the reason
    why there is none."""
    # Eager attention: with sdpa the masks' values are read, and the meta device has none.
    eager = workload.model_copy(update={"attention": "eager"})
    return of_model(models.build(spec, eager, experts=shared_heads.on_meta(spec)).to("meta"))


def of_model(model: nn.Module) -> tuple[StagePlan | None, str | None]:
    """Plan the cut of a model on the meta device into pipeline stages; returns the plan or the reason why there is
    none."""
    try:
        return _plan(model), None
    except ValueError as error:
        return None, str(error)


def blocks_of(model: nn.Module) -> StagedBlocks:
    """Number of pipeline stages that a model on the meta device can have; or 1 and a note with the reason why it cannot
    be cut."""
    plan, note = of_model(model)
    return StagedBlocks(1 if plan is None else len(repeated_blocks(model)), note)


def _plan(model: nn.Module) -> StagePlan:
    """Plan the cut of a model into pipeline stages.

    Raises:
        ValueError: the model cannot be cut; the message is the end of a sentence, without its beginning.
    """
    blocks = repeated_blocks(model)
    if len(blocks) < 2:
        raise ValueError("it has no blocks that repeat")
    config: Any = getattr(model, "config", None)
    if getattr(config, "model_type", None) in _DIFFERENT:
        raise ValueError("it trained something else, or failed, when this was tried")
    _require_own_parameters([block for _, block in blocks])
    watch = _BlockWatch(model, blocks)
    try:
        watch.run()
    except (RuntimeError, TypeError, AttributeError, ImportError, KeyError, IndexError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"its blocks could not be looked at ({reason})") from error
    return watch.plan()


def _require_own_parameters(blocks: list[nn.Module]) -> None:
    earlier_parameters: set[int] = set()
    for block in blocks:
        block_parameters = {id(parameter) for parameter in block.parameters()}
        if block_parameters & earlier_parameters:
            raise ValueError("its blocks share parameters")
        earlier_parameters |= block_parameters


def _can_stand_in(module: nn.Module, args: Any, output: Any) -> bool:
    """Whether the shape of a module's output can be computed without the module's parameters. If so, a module without
    parameters can stand for it in the stages that do not hold it (`stage_cut`)."""
    if not args or not isinstance(args[0], torch.Tensor) or not isinstance(output, torch.Tensor):
        return False
    shape = tuple(args[0].shape)
    if isinstance(module, nn.Embedding):
        shape = (*shape, module.embedding_dim)
    elif isinstance(module, nn.Linear):
        shape = (*shape[:-1], module.out_features)
    return tuple(output.shape) == shape


class _BlockWatch:
    """Recorder of one forward pass, which notes when each block and each module around the blocks runs, and on which
    values."""

    def __init__(self, model: nn.Module, blocks: list[tuple[str, nn.Module]]) -> None:
        self._model, self._blocks = model, blocks
        self._passed = 0
        """Number of blocks that have run so far."""
        self._hidden: Any = None
        self._inside = False
        self._ran: dict[str, set[str]] = {"before": set(), "between": set(), "after": set()}

    def run(self) -> None:
        inside = {id(module) for _, block in self._blocks for module in block.modules()}
        handles = [
            module.register_forward_hook(self._outside(name))
            for name, module in self._model.named_modules()
            if id(module) not in inside and list(module.parameters(recurse=False))
        ]
        for name, block in self._blocks:
            handles.append(block.register_forward_pre_hook(self._enter(name), with_kwargs=True))
            handles.append(block.register_forward_hook(self._leave))
        tokens = torch.zeros(1, _TOKENS, dtype=torch.int64, device="meta")
        # Without a mask, transformers looks into the position ids for packed samples, and here they hold no values.
        mask = torch.ones(1, _TOKENS, dtype=torch.bool, device="meta")
        try:
            with torch.enable_grad():
                self._model(input_ids=tokens, attention_mask=mask, use_cache=False)
        finally:
            for handle in handles:
                handle.remove()

    def plan(self) -> StagePlan:
        """Plan the cut into pipeline stages from the recorded forward pass.

        Raises:
            ValueError: the modules did not run in a way that can be cut.
        """
        if self._passed != len(self._blocks):
            raise ValueError(f"{self._passed} of its {len(self._blocks)} blocks ran once and in order")
        if self._ran["between"]:
            raise ValueError(f"its {min(self._ran['between'])} runs between blocks")
        before, after = frozenset(self._ran["before"]), frozenset(self._ran["after"])
        for name in before | after:
            if self._holds_blocks(name):
                raise ValueError(f"its {name or 'whole'} has parameters beside its blocks")
        return StagePlan(int(self._hidden.shape[-1]), before, after)

    def _outside(self, name: str) -> Any:
        def note(module: nn.Module, args: Any, output: Any) -> None:
            phase = "before" if not self._passed else "after" if self._passed == len(self._blocks) else "between"
            self._ran["between" if self._inside else phase].add(name)
            if phase == "before" and not _can_stand_in(module, args, output):
                raise ValueError(
                    f"its {name} is no table, matrix or norm of one tensor, which other stages could leave out"
                )

        return note

    def _holds_blocks(self, name: str) -> bool:
        return any(not name or block.startswith(f"{name}.") for block, _ in self._blocks)

    def _enter(self, name: str) -> Any:
        def enter(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            hidden = args[0] if args else kwargs.get("hidden_states")
            if not isinstance(hidden, torch.Tensor) or hidden.dim() != 3:
                raise ValueError("its blocks take no hidden states of [samples, positions, width]")
            if self._passed >= len(self._blocks) or self._blocks[self._passed][0] != name:
                raise ValueError("its blocks do not run once and in order")
            if self._passed and hidden is not self._hidden:
                raise ValueError("something happens to the hidden states between its blocks")
            other_arguments = {f"argument {i + 1}": value for i, value in enumerate(args) if i} | kwargs
            for key, value in other_arguments.items():
                leaves = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor) and leaf is not hidden]
                # On the meta device, "depends on weights" shows as requires_grad: such a value would have to travel
                # between stages.
                if any(leaf.requires_grad for leaf in leaves):
                    raise ValueError(f"its blocks take more than hidden states from what ran before them ({key})")
            self._inside = True

        return enter

    def _leave(self, _module: nn.Module, _args: Any, output: Any) -> None:
        if not isinstance(output, torch.Tensor):
            raise ValueError("its blocks return more than hidden states")
        self._hidden, self._inside = output, False
        self._passed += 1
