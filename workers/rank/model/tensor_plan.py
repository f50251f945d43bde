"""Tensor parallelism: styles that split each module of a model, from the plan that transformers has for its
architecture.

Blocks compute on parts of heads and widths; between them ranks hold parts of the sequence (Korthikanti et al., arXiv:2205.05198).
The sequence is split at the input of the first block, so that the model's own masks and positions see all of it.
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
from shardtune.workers.rank.model.chunked_loss import ChunkedHead
from shardtune.workers.rank.model.tensor_styles import GatherAtInput, Replicated, SplitAtInput

_INSIDE_WHOLE = {"colwise_gather_output", "rowwise_split_input"}
"""Parallel styles that split one matrix only. If a child of a block (such as its attention) contains such a style,
every rank computes the child's other modules, such as norms, whole."""


@dataclass(frozen=True)
class TensorPlan:
    """Tensor-parallel plan of a model: parallel styles by module name."""

    styles: dict[str, ParallelStyle]
    first_block: str
    """Name of the block at whose input the sequence is split."""
    divisor: int
    """Number that the number of tensor-parallel ranks must divide: the greatest common divisor of the numbers of heads
    and the widths of the split matrices."""

    def apply(self, model: nn.Module, mesh: DeviceMesh) -> None:
        """Make every parameter a DTensor over the mesh, still without values, and let each module exchange its inputs
        and outputs among ranks as its parallel style says."""
        tied = _tied(model)
        # None: each rank fills its own part later, so nothing is sent.
        parallelize_module(model, mesh, self.styles, src_data_rank=None)
        # A second call: a block without parameters of its own can already have a style in the plan, and a name takes one.
        parallelize_module(model.get_submodule(self.first_block), mesh, SplitAtInput())
        for (module, name), *other_owners in tied:
            for owner, key in other_owners:
                owner._parameters[key] = module._parameters[name]


class SplitWidths(NamedTuple):
    """Fields of `ModelSummary` that say whether tensor parallelism is possible."""

    tensor_divisor: int
    """Number that the number of tensor-parallel ranks must divide; 1 if the model cannot be split."""
    tensor_note: str | None
    """Reason why the model's matrices cannot be split among ranks; None if they can."""


def widths_of(model: nn.Module) -> SplitWidths:
    """Number that the number of tensor-parallel ranks must divide; or 1 and a note with the reason why the model cannot
    be split among ranks."""
    try:
        return SplitWidths(of(model).divisor, None)
    except ValueError as error:
        return SplitWidths(1, str(error))


def of(model: nn.Module) -> TensorPlan:
    """Tensor-parallel plan of a model of transformers.

    Raises:
        ValueError: the model has no plan; the message is the end of a sentence, without its beginning.
    """
    style_words: dict[str, str] = getattr(model, "tp_plan", None) or {}
    blocks = repeated_blocks(model)
    if not blocks or not any(
        _style_word(f"{blocks[0][0]}.{name}", style_words) for name, _ in blocks[0][1].named_modules()
    ):
        raise ValueError("transformers has no plan of tensor parallelism for its architecture")
    styles = _around(model, [block for _, block in blocks])
    sizes = [_heads(model)]
    for name, block in blocks:
        for key, child in block.named_children():
            child_styles, widths = _child_styles(f"{name}.{key}", child, style_words)
            styles |= child_styles
            sizes += widths
    _require_all(model, styles)
    return TensorPlan(styles, blocks[0][0], math.gcd(*sizes))


def _child_styles(
    path: str, child: nn.Module, style_words: dict[str, str]
) -> tuple[dict[str, ParallelStyle], list[int]]:
    """Parallel styles of a block's child (such as attention or MLP), and the widths of matrices that these styles
    split.

    Norms work on a part of the sequence; a child with split matrices gathers the whole sequence at its input.
    """
    modules = {f"{path}.{name}" if name else path: module for name, module in child.named_modules()}
    words = {name: word for name in modules if (word := _style_word(name, style_words)) is not None}
    if not words:
        return ({path: SequenceParallel(use_local_output=True)} if _is_vector(child) else {}), []
    styles: dict[str, ParallelStyle] = {path: GatherAtInput()}
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
    """Parallel style of torch for the name of a style in the tensor-parallel plan of transformers.

    Raises:
        ValueError: torch has no such style.
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
            # A norm of each head: any axis that is not normalised will do.
            return SequenceParallel(sequence_dim=1, use_local_output=True)
        case "replicate" if _is_vector(module):
            return Replicated()
        case _:
            raise ValueError(f"its {name} is split as {word!r}, for which torch has no style")


def _around(model: nn.Module, blocks: list[nn.Module]) -> dict[str, ParallelStyle]:
    """Parallel styles of the modules outside of the blocks: embedding and head are split by vocabulary, and the last
    norm works on parts of the sequence."""
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
            # A head that computes the loss itself returns one number, the same on each rank.
            output = Replicate() if isinstance(head, ChunkedHead) else Shard(-1)
            styles[name] = ColwiseParallel(input_layouts=Shard(1), output_layouts=output, use_local_output=False)
        elif _is_vector(module):
            styles[name] = SequenceParallel(use_local_output=True)
    return styles


def _require_all(model: nn.Module, styles: dict[str, ParallelStyle]) -> None:
    """Check that every module with parameters has a parallel style: without a style, its gradients would differ between
    ranks.

    Raises:
        ValueError: a module has none.
    """
    for name, module in model.named_modules():
        if list(module.parameters(recurse=False)) and name not in styles:
            raise ValueError(f"its plan has no style for {name}")


def _style_word(name: str, style_words: dict[str, str]) -> str | None:
    return next((word for pattern, word in style_words.items() if fnmatch.fnmatchcase(name, pattern)), None)


def _is_vector(module: nn.Module, recurse: bool = True) -> bool:
    """Whether a module has parameters and all of them are scales or shifts of the last axis, like the parameters of a
    norm."""
    parameters = list(module.parameters(recurse))
    return bool(parameters) and all(parameter.dim() == 1 for parameter in parameters)


def _heads(model: nn.Module) -> int:
    """Greatest common divisor of the model's numbers of query and key heads."""
    config: Any = getattr(model, "config")  # noqa: B009 -- nn.Module's attributes are untyped
    text = config.get_text_config()
    heads = int(getattr(text, "num_attention_heads", 0) or 0)
    return math.gcd(heads, int(getattr(text, "num_key_value_heads", 0) or 0))


def _tied(model: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """Groups of modules that share a parameter: one group for each parameter that several modules share."""
    owners: dict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
    for module in model.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                owners[id(parameter)].append((module, key))
    return [sharers for sharers in owners.values() if len(sharers) > 1]
