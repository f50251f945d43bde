"""Record that describes one optimizer to the exports; each optimizer's module creates its own record."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shardtune.tuner.export.source import ExportSource

Settings = TypeVar("Settings")


def no_helpers(_divided: bool) -> str:
    """Empty source, for an optimizer that torch makes in one call."""
    return ""


def no_differences(_source: ExportSource) -> tuple[str, ...]:
    """No notes, for an optimizer that the Trainer trains as it was measured."""
    return ()


@dataclass(frozen=True)
class ExportedOptimizer(Generic[Settings]):
    """Export functions of one optimizer."""

    constants: Callable[[Settings], list[str]]
    """Function that returns the lines of `train_snippet.py` that define the optimizer's settings."""
    make: Callable[[str, str, bool, str], str]
    """Function that returns the source of an expression that makes the optimizer, from the sources of its parameters, of
    the model's repeated blocks and of the index of a rank's shard. Its flag is whether the parameters are on several
    device meshes."""
    torchtitan: Callable[[Settings], dict[str, Any]]
    """Function that returns the arguments of torchtitan's `default_adamw`."""
    known_in: frozenset[str] | None
    """Other training programs (`Trainer`, `torchtitan`) that have a name for the optimizer; None: all have."""
    helpers: Callable[[bool], str] = no_helpers
    """Function that returns the source of what `train_snippet.py` defines for the optimizer. Its flag is that of `make`."""
    needs_blocks: bool = False
    """Whether the exported script uses the list of the model's repeated blocks to make the optimizer."""
    differs_in_trainer: Callable[[ExportSource], tuple[str, ...]] = no_differences
    """Function that returns how Hugging Face's Trainer, and what is built on it, trains the optimizer otherwise."""
