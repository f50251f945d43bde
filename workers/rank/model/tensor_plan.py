"""Tensor parallel: how each module of a model is split, by the plan that transformers has for its architecture.

Blocks compute on parts of heads and widths; between them ranks hold parts of the sequence (Korthikanti et al., arXiv:2205.05198).
The sequence is split at the door of the first block, so that the model's own masks and positions see all of it.
"""

import fnmatch
import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle

from shardtune.workers.blocks.prepare import repeated_blocks
from shardtune.workers.rank.model.tensor_styles import GatherAtDoor, SplitAtDoor, Whole

_INSIDE_WHOLE = {"colwise_gather_output", "rowwise_split_input"}
"""Styles of a child whose matrices alone are split: what lies between them, every rank computes whole."""


@dataclass(frozen=True)
class TensorPlan:
    """Styles by the names of modules."""

    styles: dict[str, ParallelStyle]
    first_block: str
    divisor: int
    """Numbers of ranks must divide it: heads, and widths of the blocks' matrices."""

    def apply(self, model: nn.Module, mesh: DeviceMesh) -> None:
        """Make every parameter a DTensor over the mesh, still without values, and have modules exchange what they need."""
        tied = _tied(model)
        # None: each rank fills its own part later, so nothing is sent.
        parallelize_module(model, mesh, self.styles, src_data_rank=None)
        # By itself: a block that is a plain pass-through of its children has a style of its own besides.
        parallelize_module(model.get_submodule(self.first_block), mesh, SplitAtDoor())
        for (module, name), *others in tied:
            for other, key in others:
                other._parameters[key] = module._parameters[name]


class SplitWidths(NamedTuple):
    """What `ModelSummary` says of it."""

    tensor_divisor: int
    tensor_note: str | None


def widths_of(model: nn.Module) -> SplitWidths:
    """Which numbers of ranks can split a model, and why none can."""
    try:
        return SplitWidths(of(model).divisor, None)
    except ValueError as error:
        return SplitWidths(1, str(error))


def of(model: nn.Module) -> TensorPlan:
    """The plan of a model of transformers.

    Raises:
        ValueError: why there is none, as the end of a sentence.
    """
    known: dict[str, str] = getattr(model, "tp_plan", None) or {}
    blocks = repeated_blocks(model)
    if not blocks or not any(_word(f"{blocks[0][0]}.{name}", known) for name, _ in blocks[0][1].named_modules()):
        raise ValueError("transformers has no plan of tensor parallelism for its architecture")
    styles = _around(model, [block for _, block in blocks])
    sizes = [_heads(model)]
    for name, block in blocks:
        for key, child in block.named_children():
            found, widths = _of_child(f"{name}.{key}", child, known)
            styles |= found
            sizes += widths
    _require_all(model, styles)
    return TensorPlan(styles, blocks[0][0], math.gcd(*sizes))


def _of_child(path: str, child: nn.Module, known: dict[str, str]) -> tuple[dict[str, ParallelStyle], list[int]]:
    """Norms work on a part of the sequence; a child with splits gathers the sequence at its door. Also the widths it splits."""
    modules = {f"{path}.{name}" if name else path: module for name, module in child.named_modules()}
    words = {name: word for name in modules if (word := _word(name, known)) is not None}
    if not words:
        return ({path: SequenceParallel(use_local_output=True)} if _is_vector(child) else {}), []
    styles: dict[str, ParallelStyle] = {path: GatherAtDoor()}
    widths = []
    for name, module in modules.items():
        word = words.get(name)
        if word is None and _is_vector(module, recurse=False) and set(words.values()) & _INSIDE_WHOLE:
            word = "replicate"
        if word is not None:
            styles[name] = _style(name, word, module)
            if isinstance(module, nn.Linear):
                widths.append(module.in_features if word.startswith("rowwise") else module.out_features)
    return styles, widths


def _style(name: str, word: str, module: nn.Module) -> ParallelStyle:
    """transformers' word as torch's style.

    Raises:
        ValueError: torch has none.
    """
    match word:
        case "colwise" if isinstance(module, nn.Linear):
            return ColwiseParallel()
        case "colwise_gather_output" if isinstance(module, nn.Linear):
            return ColwiseParallel(output_layouts=Replicate())
        case "rowwise" if isinstance(module, nn.Linear):
            return RowwiseParallel(output_layouts=Shard(1))
        case "rowwise_split_input" if isinstance(module, nn.Linear):
            return RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
        case "replicated_with_grad_allreduce" if _is_vector(module):
            # Of each head: any axis will do that is not normalised.
            return SequenceParallel(sequence_dim=1, use_local_output=True)
        case "replicate" if _is_vector(module):
            return Whole()
        case _:
            raise ValueError(f"its {name} is split as {word!r}, for which torch has no style")


def _around(model: nn.Module, blocks: list[nn.Module]) -> dict[str, ParallelStyle]:
    """Of what is in no block: tables by vocabulary, the last norm on parts of the sequence."""
    inside = {id(module) for block in blocks for module in block.modules()}
    tables: Any = model
    table, head = tables.get_input_embeddings(), tables.get_output_embeddings()
    styles: dict[str, ParallelStyle] = {}
    for name, module in model.named_modules():
        if id(module) in inside or not list(module.parameters(recurse=False)):
            continue
        if module is table and isinstance(module, nn.Embedding):
            styles[name] = RowwiseParallel(input_layouts=Replicate())
        elif module is head and isinstance(module, nn.Linear):
            # Logits stay split by vocabulary, and so does the loss.
            styles[name] = ColwiseParallel(input_layouts=Shard(1), use_local_output=False)
        elif _is_vector(module):
            styles[name] = SequenceParallel(use_local_output=True)
    return styles


def _require_all(model: nn.Module, styles: dict[str, ParallelStyle]) -> None:
    """Raises ValueError for a module with parameters that no style is for: its gradients would differ between ranks."""
    for name, module in model.named_modules():
        if list(module.parameters(recurse=False)) and name not in styles:
            raise ValueError(f"its plan says nothing of {name}")


def _word(name: str, known: dict[str, str]) -> str | None:
    return next((word for pattern, word in known.items() if fnmatch.fnmatchcase(name, pattern)), None)


def _is_vector(module: nn.Module, recurse: bool = True) -> bool:
    """Whether it has parameters, and all are scales or shifts of the last axis, as a norm's are."""
    own = list(module.parameters(recurse))
    return bool(own) and all(parameter.dim() == 1 for parameter in own)


def _heads(model: nn.Module) -> int:
    """Heads of queries and of keys."""
    config: Any = getattr(model, "config")  # noqa: B009 -- nn.Module's attributes are untyped
    text = config.get_text_config()
    heads = int(getattr(text, "num_attention_heads", 0) or 0)
    return math.gcd(heads, int(getattr(text, "num_key_value_heads", 0) or 0))


def _tied(model: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """Owners of each parameter that several modules have."""
    owners: dict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
    for module in model.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                owners[id(parameter)].append((module, key))
    return [found for found in owners.values() if len(found) > 1]
