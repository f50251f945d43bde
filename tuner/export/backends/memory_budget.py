"""Budget of the activations of compiled blocks in exported files: lines of `train_snippet.py`, and notes for programs
whose scripts or modules have to set it."""

from shardtune.tuner.export.source import ExportSource

_MODULE = "torch._functorch.config"
_NO_DROPOUT = "the blocks must have no dropout, which backward could draw anew"
"""End of a note for a user's own script or module, whose model may have dropout, unlike that of a trial."""


def is_used(source: ExportSource) -> bool:
    """Whether the exported configuration limits the activations that compiled blocks keep."""
    return source.config.activation_memory_budget < 1


def modules(source: ExportSource) -> list[str]:
    """Modules that `train_snippet.py` imports to set the budget; empty without one."""
    return [_MODULE] if is_used(source) else []


def script_lines(source: ExportSource) -> list[str]:
    """Lines of `train_snippet.py` that set the budget before the blocks are compiled, which is at their first call;
    empty without one."""
    if not is_used(source):
        return []
    return [
        "# Compiled blocks keep this part of their activations and recompute the rest. Do not put dropout back into them:",
        "# backward could draw it anew.",
        *_assignments(source),
    ]


def accelerate_notes(source: ExportSource) -> list[str]:
    """Notes on the budget for a user's own script under Accelerate; empty without one."""
    settings = "; ".join(_assignments(source))
    return [f"{settings}, before the first step; {_NO_DROPOUT}"] if is_used(source) else []


def lightning_notes(source: ExportSource) -> tuple[str, ...]:
    """Notes on the budget for Lightning, where the user's module has to set it; empty without one."""
    if not is_used(source):
        return ()
    settings = "; ".join(_assignments(source))
    return (f"activation_memory_budget: in your module, before the first step: {settings}; {_NO_DROPOUT}",)


def _assignments(source: ExportSource) -> list[str]:
    """Settings of torch that give each block the budget. Under DDP blocks are compiled whole, as in a trial."""
    lines = [f"{_MODULE}.activation_memory_budget = {source.config.activation_memory_budget}"]
    return [*lines, "torch._dynamo.config.optimize_ddp = False"] if source.config.backend == "ddp" else lines
