"""Backends as their users call them, and as charts draw them; colours are `static/app.css`'s, by kind."""

from typing import Literal, NamedTuple


class BackendWords(NamedTuple):
    """How a page shows one backend."""

    name: str
    mark: Literal["circle", "square", "diamond", "triangle"]


BACKENDS: dict[str, BackendWords] = {
    "ddp": BackendWords("DDP", "circle"),
    "zero": BackendWords("DeepSpeed ZeRO", "square"),
    "fsdp1": BackendWords("FSDP1", "diamond"),
    "fsdp2": BackendWords("FSDP2", "triangle"),
}


def backend_name(kind: str) -> str:
    """A backend in words; a kind that is not there any more as it was stored."""
    return BACKENDS[kind].name if kind in BACKENDS else kind


def short_name(kind: str) -> str:
    """The same without who makes it: `ZeRO`."""
    return backend_name(kind).removeprefix("DeepSpeed ")


def backend_mark(kind: str) -> str:
    """Its shape in a chart."""
    return BACKENDS[kind].mark if kind in BACKENDS else "circle"
