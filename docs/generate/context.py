"""The page that a section is generated for, and where other generated sections stand."""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PageContext:
    """Page and anchors that a generated section needs to link to others."""

    page: str
    """Path of the page in the repository, such as `docs/reference/settings.md`."""
    pages_of_sections: Mapping[str, str]
    """Page of each section, by the first word of its marker."""

    def link_to(self, section: str, anchor: str) -> str:
        """Address of an anchor in another generated section, relative to this page; empty where no page has that section."""
        page = self.pages_of_sections.get(section)
        if page is None:
            return ""
        path = "" if page == self.page else posixpath.relpath(page, posixpath.dirname(self.page))
        return f"{path}#{anchor}"
