"""Pictures of the documentation are small, since every reader loads them, and each of them is shown."""

import posixpath
from collections.abc import Iterator, Mapping

from docs.generate import pages
from docs.generate.assemble import CONFIG
from docs.generate.sources import ROOT

_FOLDER = "docs/pictures"
_MOST_BYTES = 60 * 1024


def problems(expanded: Mapping[str, list[pages.Line]]) -> Iterator[str]:
    """A line for each picture that is too large, or that no page shows."""
    shown = {
        posixpath.normpath(posixpath.join(posixpath.dirname(path), address.partition("#")[0]))
        for path, lines in expanded.items()
        for _, address in pages.links(lines)
    }
    config = (ROOT / CONFIG).read_text()
    for file in sorted((ROOT / _FOLDER).iterdir()):
        name, size = f"{_FOLDER}/{file.name}", file.stat().st_size
        if size > _MOST_BYTES:
            yield f"{name}:1: picture has {size} bytes, {_MOST_BYTES} at most; take it anew with `make pictures`"
        if name not in shown and name.removeprefix("docs/") not in config:
            yield f"{name}:1: no page shows the picture; show it, or remove it here and from tests/browser/"
