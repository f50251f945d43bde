"""Record that describes one backend to the exports; each backend's module creates its own record."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from shardtune.api_schemas.strategies import Strategy
from shardtune.tuner.export.source import ExportSource

S = TypeVar("S")


@dataclass(frozen=True)
class SnippetParts:
    """Parts of the exported script `train_snippet.py` that depend on the backend."""

    trainer: str
    """Source of the body of the exported script's `Trainer` class."""
    imports: tuple[str, ...]
    """Import lines of the exported script of the form `from …`."""
    modules: tuple[str, ...] = ()
    """Names of modules that the exported script imports before torch's modules."""
    standard: tuple[str, ...] = ()
    """Names of standard library modules that the exported script imports."""
    constants: tuple[str, ...] = ()
    helpers: str = ""
    """Source of functions that the exported script defines before its `Trainer` class."""
    on_meta: bool = False
    """Whether the exported script creates weights while or after sharding, so that no rank ever has the whole model in
    memory."""
    on_device: str | None = None
    """Dtype, as written in the exported script, in which each rank creates the whole model on its GPU. If None, the
    script creates the model on the meta device, or DeepSpeed shards it at once."""
    needs_blocks: bool = False
    """Whether the exported script uses the list of the model's repeated blocks."""
    join: tuple[str, ...] = ()
    """Lines of the exported script that run after the process group is created."""
    needs: str = ""
    """Names of files that the exported script needs in its folder."""


@dataclass(frozen=True)
class AccelerateParts:
    """Parts of `accelerate.yaml`, and of the command that launches a script with it, that depend on the backend."""

    values: dict[str, Any] = field(default_factory=dict)
    """Fields of `accelerate.yaml` by name; None removes a field."""
    script_lines: tuple[str, ...] = ()
    """Notes on changes that the user's script needs to train as measured."""
    lost: tuple[str, ...] = ()
    """Notes on settings that neither the file nor Accelerate's options can express."""
    accumulates: bool = True
    """Whether the script's `Accelerator` accumulates and clips gradients; otherwise the backend's own configuration
    does."""
    reduces_every: bool = False
    """Whether gradients are reduced after each of several micro batches of a step."""
    checkpoints: bool = False
    """Whether `accelerate.yaml` itself sets `full` activation checkpointing."""
    ignored_on_cpu: str | None = None
    """Name of an Accelerate setting that Accelerate silently ignores on CPU ranks; None where there is none."""
    launch: tuple[str, ...] = ()
    """Shell lines that must run before the launch command."""


@dataclass(frozen=True)
class ConsumerParts:
    """Parts of the file exported for another training program (the consumer), such as torchtitan, that depend on the
    backend."""

    strategy: Strategy
    """Strategy (backend and its options) that the other program runs, as near as Shardtune's own fields can express
    it."""
    notes: tuple[str, ...] = ()
    """Notes on differences between the other program and the measured trial that no knob expresses."""
    script_notes: tuple[str, ...] = ()
    """Notes on what the script beside the exported file does, for programs that run such a script."""
    values: dict[str, Any] = field(default_factory=dict)
    """Fields of the other program's own configuration."""
    code: str = ""
    """Lines of Python that the backend adds to the exported file, after the lines that all backends have."""


Consumer = Callable[[ExportSource, S], ConsumerParts]


def no_files(_subject: ExportSource, _strategy: Any) -> dict[str, str]:
    """Return no files, for a backend that exports none of its own."""
    return {}


@dataclass(frozen=True)
class ExportedBackend(Generic[S]):
    """Export functions of one backend. Each takes the source of an export (a measured configuration with its model,
    workload and cluster) and the strategy. A function for another program is None where this program lacks the
    backend."""

    snippet: Callable[[ExportSource, S], SnippetParts]
    accelerate: Callable[[ExportSource, S], AccelerateParts]
    training_arguments: Consumer[S] | None
    torchtitan: Consumer[S] | None
    lightning: Consumer[S] | None
    files: Callable[[ExportSource, S], dict[str, str]] = no_files
    """Function that returns additional exported files of the backend: content by file name."""
