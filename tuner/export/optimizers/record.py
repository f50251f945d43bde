"""Record that describes one optimizer to the exports; each optimizer's module creates its own record."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shardtune.tuner.export.source import ExportSource

Settings = TypeVar("Settings")


def no_helpers(_divided: bool) -> str:
    """Return no source: for an optimizer that torch makes in one call, the exported script needs no helper functions."""
    return ""


def no_differences(_source: ExportSource) -> tuple[str, ...]:
    """Return no notes: for an optimizer that the Trainer trains exactly as it was measured."""
    return ()


@dataclass(frozen=True)
class ExportedOptimizer(Generic[Settings]):
    """Export functions of one optimizer."""

    constants: Callable[[Settings], list[str]]
    """Function that returns the lines of `train_snippet.py` that define the optimizer's settings."""
    make: Callable[[str, str, bool, str], str]
    """Function that returns the source of an expression that makes the optimizer. Its arguments are the sources of the
    parameters and of the model's repeated blocks, a flag whether the parameters are on several device meshes, and the
    source of the index of a rank's shard."""
    torchtitan: Callable[[Settings], dict[str, Any]]
    """Function that returns the arguments of torchtitan's `default_adamw`."""
    known_in: frozenset[str] | None
    """Names of other training programs (`Trainer`, `torchtitan`) that support the optimizer. If None, all do."""
    helpers: Callable[[bool], str] = no_helpers
    """Function that returns the source of what `train_snippet.py` defines for the optimizer. Its flag is whether the
    parameters are on several device meshes."""
    needs_blocks: bool = False
    """Whether the exported script uses the list of the model's repeated blocks to make the optimizer."""
    differs_in_trainer: Callable[[ExportSource], tuple[str, ...]] = no_differences
    """Function that returns notes on how Hugging Face's Trainer, and programs built on it, run the optimizer in another
    way than measured."""
