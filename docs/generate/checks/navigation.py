"""The navigation of the site lists every page of its five kinds, and no page that is not there."""

import re
import tomllib
from collections.abc import Iterator
from typing import Any

from docs.generate.assemble import CONFIG, documentation_pages
from docs.generate.sources import ROOT

_LISTED = ("index.md", "tutorials/", "how-to/", "reference/", "explanation/", "contributing/")


def problems() -> Iterator[str]:
    """A line for each page that the navigation lacks or invents."""
    text = (ROOT / CONFIG).read_text()
    listed = set(_entries(tomllib.loads(text)["project"]["nav"]))
    for name in sorted(listed):
        if not (ROOT / "docs" / name).exists():
            number = next(i for i, line in enumerate(text.splitlines(), 1) if f'"{name}"' in line)
            yield f"{CONFIG}:{number}: page ({name}) is not there; correct or remove the entry"
    for path in documentation_pages():
        name = path.removeprefix("docs/")
        if re.match("|".join(map(re.escape, _LISTED)), name) and name not in listed:
            yield f"{path}:1: page stands nowhere in the navigation; add it to `nav` in {CONFIG}"


def _entries(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _entries(child)
