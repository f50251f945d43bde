"""Pictures of the documentation are small: they are committed, and every reader loads them."""

from collections.abc import Iterator

from docs.generate.sources import ROOT

_FOLDER = "docs/pictures"
_MOST_BYTES = 60 * 1024


def problems() -> Iterator[str]:
    """A line for each picture that is too large."""
    for file in sorted((ROOT / _FOLDER).iterdir()):
        size = file.stat().st_size
        if size > _MOST_BYTES:
            yield f"{_FOLDER}/{file.name}:1: picture has {size} bytes, {_MOST_BYTES} at most; take it anew with `make pictures`"
