"""What the exports must know of a backend: one record, made in the backend's own module."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from shardtune.api_schemas.strategies import Strategy
from shardtune.tuner.export.source import ExportSource

S = TypeVar("S")


@dataclass(frozen=True)
class SnippetParts:
    """Of `train_snippet.py`."""

    trainer: str
    """Body of its `Trainer` class."""
    imports: tuple[str, ...]
    """`from …` lines."""
    modules: tuple[str, ...] = ()
    """`import …` lines before torch's."""
    standard: tuple[str, ...] = ()
    """Modules of the standard library."""
    constants: tuple[str, ...] = ()
    helpers: str = ""
    """Definitions before the class."""
    on_meta: bool = False
    """Weights are made while or after sharding: no rank ever holds the whole model."""
    needs_blocks: bool = False
    """The script names the list of repeated blocks."""
    join: tuple[str, ...] = ()
    """Lines after the process group is made."""
    needs: str = ""
    """Files beside the script."""


@dataclass(frozen=True)
class AccelerateParts:
    """Of `accelerate.yaml` and of the line that launches with it."""

    values: dict[str, Any] = field(default_factory=dict)
    """Fields of the file; None takes one out."""
    in_code: tuple[str, ...] = ()
    """What must stand in the user's script."""
    accumulates: bool = True
    """The script's `Accelerator` accumulates and clips; else the backend's own configuration does."""
    reduces_every: bool = False
    """Of several micro batches gradients are reduced after each."""
    checkpoints: bool = False
    """The file itself says `full` activation checkpointing."""
    ignored_on_cpu: str | None = None
    """Accelerate's name of what it leaves out on CPU ranks without a word."""
    launch: tuple[str, ...] = ()
    """Lines of the shell before the command."""


@dataclass(frozen=True)
class ConsumerParts:
    """Of one consumer's file."""

    done: Strategy
    """What the consumer does, as near as our words come."""
    besides: tuple[str, ...] = ()
    """What it does besides, in no knob."""
    values: dict[str, Any] = field(default_factory=dict)
    """Fields of the consumer's own configuration."""
    code: str = ""
    """Lines of Python after what the file has for everybody."""


Consumer = Callable[[ExportSource, S], ConsumerParts]


def no_files(_subject: ExportSource, _strategy: Any) -> dict[str, str]:
    """The backend has no file of its own."""
    return {}


@dataclass(frozen=True)
class ExportedBackend(Generic[S]):
    """Each function takes the export's source and its strategy; None: the consumer has no such backend."""

    snippet: Callable[[ExportSource, S], SnippetParts]
    accelerate: Callable[[ExportSource, S], AccelerateParts]
    training_arguments: Consumer[S] | None
    torchtitan: Consumer[S] | None
    lightning: Consumer[S] | None
    files: Callable[[ExportSource, S], dict[str, str]] = no_files
    """Further files by name."""
