"""Display names and chart symbols of the backends; `static/app.css` defines their colours by kind."""

from typing import Literal, NamedTuple


class BackendWords(NamedTuple):
    """Display name and chart symbol of one backend."""

    name: str
    mark: Literal["circle", "square", "diamond", "triangle"]


BACKENDS: dict[str, BackendWords] = {
    "ddp": BackendWords("DDP", "circle"),
    "zero": BackendWords("DeepSpeed ZeRO", "square"),
    "fsdp1": BackendWords("FSDP1", "diamond"),
    "fsdp2": BackendWords("FSDP2", "triangle"),
}


def backend_name(kind: str) -> str:
    """Return the display name of a backend; if the backend no longer exists, return the stored name."""
    # Stored studies outlive the code: a removed backend must still be shown.
    return BACKENDS[kind].name if kind in BACKENDS else kind


def short_name(kind: str) -> str:
    """Return a backend's display name without its vendor, such as `ZeRO` for DeepSpeed ZeRO."""
    return backend_name(kind).removeprefix("DeepSpeed ")


def backend_mark(kind: str) -> str:
    """Return the symbol that marks a backend's trials in charts; a circle if the backend no longer exists."""
    return BACKENDS[kind].mark if kind in BACKENDS else "circle"
