"""Search of a block for the one MLP that computes each token by itself."""

import inspect
from collections.abc import Sequence

from torch import nn

_NAMES = ("mlp", "feed_forward", "ffn", "ff")
"""Names by which the blocks of transformers call their MLP."""
_LINEAR = ("Conv1D",)
"""Names of classes that are linear layers without being `nn.Linear`, such as GPT-2's."""


def note_of(blocks: Sequence[nn.Module]) -> str | None:
    """Reason why the MLPs of a model's blocks cannot be computed over slices of the tokens; None if they can."""
    if not blocks:
        return "it has no list of repeated blocks"
    try:
        for block in blocks:
            mlp_of(block)
    except ValueError as error:
        return str(error)
    return None


def mlp_of(block: nn.Module) -> nn.Module:
    """MLP of a block: the child module whose output for a token depends on this token alone.

    Raises:
        ValueError: there is none, or its output may depend on other tokens or on chance; the message is the end of a
            sentence, without its beginning.
    """
    children = dict(block.named_children())
    mlp = next((children[name] for name in _NAMES if name in children), None)
    if mlp is None:
        raise ValueError(f"its {type(block).__name__} has no module named {', '.join(_NAMES[:-1])} or {_NAMES[-1]}")
    why = _why_not(mlp)
    if why is not None:
        raise ValueError(f"its MLP ({type(mlp).__name__}) {why}")
    return mlp


def _why_not(mlp: nn.Module) -> str | None:
    """Reason why an MLP may not compute each token independently of the others; None if it does."""
    parameters = list(inspect.signature(type(mlp).forward).parameters.values())[1:]
    required = [each for each in parameters if each.default is inspect.Parameter.empty]
    if len(required) != 1 or required[0].kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
        return "takes more than hidden states"
    for name, module in mlp.named_modules():
        own = list(module.parameters(recurse=False))
        if isinstance(module, nn.ModuleList):
            return f"has a list of modules ({name}), as experts do"
        if own and not _is_linear(module) and any(parameter.dim() > 1 for parameter in own):
            return (
                f"has parameters of no linear layer ({name or type(module).__name__}), as experts and their router do"
            )
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            return f"drops values by chance ({name}), and backward would drop others"
        if isinstance(module, nn.modules.batchnorm._NormBase | nn.RReLU):
            return f"has a layer whose result depends on other tokens or on chance ({name})"
    return None if any(_is_linear(module) for module in mlp.modules()) else "has no linear layer"


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ in _LINEAR
