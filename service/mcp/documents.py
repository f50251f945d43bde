"""Pages of the documentation as resources: how-to guides, tutorials, explanations and the reference."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from shardtune.service.mcp.errors import ToolRejected

PREFIX = "shardtune://docs/"
_FOLDER = Path(__file__).with_name("pages")
"""Folder of the documentation's pages. It holds symbolic links in a checkout, and copies of the pages in a built
package."""
_GENERATED = "<!-- generated:"
"""Marker of a table that is generated when the documentation site is built. Pages that contain the marker are not
served, because the OpenAPI document and the tools' schemas state the same facts."""


class Document(NamedTuple):
    """One page."""

    uri: str
    title: str
    path: Path

    def text(self) -> str:
        """Return the page as Markdown."""
        return self.path.read_text(encoding="utf-8")


@lru_cache
def documents(folder: Path = _FOLDER) -> Mapping[str, Document]:
    """Return the documentation's pages by their URI; empty if the package was built without them."""
    # A link whose target was not copied, as in an image that was built without docs/, is no page.
    paths = sorted(path for path in folder.glob("*/*.md") if path.is_file())
    pages = [Document(_uri(folder, path), _title(path), path) for path in paths]
    return MappingProxyType({page.uri: page for page in pages if _GENERATED not in page.text()})


def read(uri: str, folder: Path = _FOLDER) -> str:
    """Return the text of a page.

    Raises:
        ToolRejected: no page has this URI.
    """
    # Looked up among the existing pages, so that no URI can leave the folder.
    page = documents(folder).get(uri)
    if page is None:
        raise ToolRejected(f"uri ({uri[:200]}) is no page of the documentation; list the resources")
    return page.text()


def _uri(folder: Path, path: Path) -> str:
    return PREFIX + path.relative_to(folder).with_suffix("").as_posix()


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        heading = next((line for line in lines if line.startswith("# ")), f"# {path.stem}")
    return heading.removeprefix("# ").strip()
