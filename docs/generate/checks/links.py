"""Links between files of the repository: the file is there, and so is the anchor."""

import posixpath
import re
from collections.abc import Iterator, Mapping

from docs.generate import pages
from docs.generate.sources import ROOT

_THEME_FRAGMENTS = {"only-light", "only-dark"}
"""What follows a picture's address to show it in one palette only."""


def problems(expanded: Mapping[str, list[pages.Line]]) -> Iterator[str]:
    """A line for each link that leads nowhere."""
    anchors = {path: pages.anchors(lines) for path, lines in expanded.items()}
    for path, lines in expanded.items():
        for number, address in pages.links(lines):
            if not re.match(r"[a-z][a-z+.-]*:|//", address):
                yield from _problem(f"{path}:{number}", path, address, anchors)


def _problem(place: str, path: str, address: str, anchors: Mapping[str, set[str]]) -> Iterator[str]:
    file, _, fragment = address.partition("#")
    if file.startswith("/"):
        yield f"{place}: link ({address}) must be relative to its page"
        return
    linked = posixpath.normpath(posixpath.join(posixpath.dirname(path), file)) if file else path
    if linked not in anchors and not (ROOT / linked).exists():
        yield f"{place}: link ({address}) leads to {linked}, which is not there; correct it, or remove the link"
    elif fragment and linked in anchors and fragment not in anchors[linked]:
        yield f"{place}: link ({address}) leads to no heading of {linked}; correct the anchor"
    elif fragment and linked not in anchors and fragment not in _THEME_FRAGMENTS:
        yield f"{place}: link ({address}) has an anchor, and {linked} is no page; remove the anchor"
