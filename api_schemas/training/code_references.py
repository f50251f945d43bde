"""Entries of a model's configuration that would make transformers download code and run it."""

from collections.abc import Iterator
from typing import Any

_KERNELS = ("attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation")
"""Fields of a model configuration in which transformers 5 accepts `OWNER/REPOSITORY`, and then downloads kernels from
that repository."""


def code_references(config: dict[str, Any]) -> Iterator[str]:
    """Yield each entry of a model configuration, at any depth, that would make transformers download code and run it."""
    # No recursion: the sender chooses the nesting, and Python's limit would make it an error of ours.
    inner: list[Any] = [config]
    while inner:
        value = inner.pop()
        inner += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        if isinstance(value, dict) and "auto_map" in value:
            yield "auto_map"
        if isinstance(value, dict):
            yield from (name for name in _KERNELS if "/" in str(value.get(name)))
