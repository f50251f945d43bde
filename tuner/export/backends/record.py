"""Record that describes a backend to the exports, made in the backend's own module."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from shardtune.api_schemas.strategies import Strategy
from shardtune.tuner.export.source import ExportSource

S = TypeVar("S")


@dataclass(frozen=True)
class SnippetParts:
    """Parts of `train_snippet.py`."""

    trainer: str
    """Body of the script's `Trainer` class."""
    imports: tuple[str, ...]
    """Import lines of the form `from …`."""
    modules: tuple[str, ...] = ()
    """Modules imported before torch's."""
    standard: tuple[str, ...] = ()
    """Modules of the standard library."""
    constants: tuple[str, ...] = ()
    helpers: str = ""
    """Definitions before the class."""
    on_meta: bool = False
    """Whether weights are made while or after sharding, so that no rank ever holds the whole model."""
    needs_blocks: bool = False
    """Whether the script names the list of repeated blocks."""
    join: tuple[str, ...] = ()
    """Lines after the process group is made."""
    needs: str = ""
    """Files that the script needs beside it."""


@dataclass(frozen=True)
class AccelerateParts:
    """Parts of `accelerate.yaml` and of the line that launches with it."""

    values: dict[str, Any] = field(default_factory=dict)
    """Fields of the file; None removes one."""
    script_lines: tuple[str, ...] = ()
    """Lines that the user's script needs."""
    accumulates: bool = True
    """Whether the script's `Accelerator` accumulates and clips; else the backend's own configuration does."""
    reduces_every: bool = False
    """Whether gradients are reduced after each of several micro batches."""
    checkpoints: bool = False
    """Whether the file itself sets `full` activation checkpointing."""
    ignored_on_cpu: str | None = None
    """Accelerate's name of a setting that it ignores on CPU ranks without a message."""
    launch: tuple[str, ...] = ()
    """Lines of the shell before the command."""


@dataclass(frozen=True)
class ConsumerParts:
    """Parts of one consumer's file."""

    strategy: Strategy
    """Strategy that the consumer runs, as near as our fields express it."""
    notes: tuple[str, ...] = ()
    """Differences of the consumer that no knob expresses."""
    values: dict[str, Any] = field(default_factory=dict)
    """Fields of the consumer's own configuration."""
    code: str = ""
    """Lines of Python after those of every file."""


Consumer = Callable[[ExportSource, S], ConsumerParts]


def no_files(_subject: ExportSource, _strategy: Any) -> dict[str, str]:
    """Empty mapping, for a backend without files of its own."""
    return {}


@dataclass(frozen=True)
class ExportedBackend(Generic[S]):
    """Renderers of a backend. Each takes the export's source and its strategy; None where the consumer has no such
    backend."""

    snippet: Callable[[ExportSource, S], SnippetParts]
    accelerate: Callable[[ExportSource, S], AccelerateParts]
    training_arguments: Consumer[S] | None
    torchtitan: Consumer[S] | None
    lightning: Consumer[S] | None
    files: Callable[[ExportSource, S], dict[str, str]] = no_files
    """Function that returns further files by name."""
