"""Arguments of `TrainingArguments` that the adapter sets, and a check that a script does not set them, too.

Python rejects a repeated keyword itself, but names neither the line nor the remedy, and only once the trial runs.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from shardtune.workers.adapter.trial import AdapterError

SET_BY_ADAPTER = frozenset(
    [
        *("per_device_train_batch_size", "gradient_accumulation_steps", "bf16", "fp16"),
        *("max_grad_norm", "optim"),
        *("learning_rate", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay", "lr_scheduler_type", "seed"),
        *("use_cpu", "dataloader_pin_memory", "deepspeed", "fsdp", "fsdp_config", "accelerator_config"),
        *("ddp_bucket_cap_mb", "ddp_find_unused_parameters", "ddp_broadcast_buffers", "ddp_static_graph"),
        *("gradient_checkpointing", "torch_compile"),
    ]
)
"""Names of all arguments of `TrainingArguments` that the adapter sets: those that `training_arguments` returns for any
configuration, and two that `attach` replaces (for activation checkpointing and compilation)."""
_CALL = "training_arguments"
_PACKAGE = Path(__file__).resolve().parents[1]


def check_importer() -> None:
    """Check that the script that imports the adapter does not itself set an argument of `TrainingArguments` that the
    adapter sets.

    Raises:
        AdapterError: names the file, line and name of each argument that both the script and the adapter set.
    """
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith("<") and not _is_ours(Path(file)):
            check_script(Path(file))
            return
        frame = frame.f_back  # type: ignore[assignment]


def check_script(script: Path) -> None:
    """Check that one script does not itself set an argument that the adapter sets. A file that cannot be parsed passes,
    because Python reports the error.

    Raises:
        AdapterError: names the file, line and name of each argument that both the script and the adapter set.
    """
    try:
        tree = ast.parse(script.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return
    lines = [f"{script}:{line}: {name}" for line, name in sorted(_collisions(tree))]
    if lines:
        raise AdapterError(
            f"the adapter sets {'these arguments' if len(lines) > 1 else 'this argument'} of TrainingArguments, and the script "
            f"sets them, too: {', '.join(lines)}; remove them there: the trial's workload and configuration hold their values"
        )


def _is_ours(file: Path) -> bool:
    """Whether a file belongs to this package, or to Python's own import system."""
    resolved = file.resolve()
    # The public package holds small modules that import these.
    return resolved.is_relative_to(_PACKAGE) or (
        resolved.parent.name == "adapter" and resolved.parents[1].name == "shardtune"
    )


def _collisions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of each keyword argument that the script sets twice: in a call that also unpacks the
    adapter's arguments, which contain it, too."""
    names = {_CALL, *_variables_of_adapter(tree)}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        starred = [keyword.value for keyword in call.keywords if keyword.arg is None]
        if not any(_mentions(value, names) for value in starred):
            continue
        for keyword in call.keywords:
            if keyword.arg in SET_BY_ADAPTER:
                yield keyword.value.lineno, str(keyword.arg)


def _variables_of_adapter(tree: ast.AST) -> Iterator[str]:
    """Yield the names of the variables to which the script assigns the result of `training_arguments`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _mentions(node.value, {_CALL}):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _mentions(value: ast.AST, names: set[str]) -> bool:
    """Whether an expression is one of the given names, a call of one, or a dict that unpacks one of them."""
    match value:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in names
        case ast.Call(func=function):
            return _mentions(function, names)
        case ast.Dict(keys=keys, values=values):
            return any(key is None and _mentions(item, names) for key, item in zip(keys, values, strict=True))
        case _:
            return False
