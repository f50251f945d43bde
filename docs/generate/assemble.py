"""Writes the pages that the site generator reads: those of docs/ with their sections filled in, and the files they link to.

A link that leaves docs/ leads to a page that shows the file: the site must not depend on the address of a repository.
"""

import os
import posixpath
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from docs.generate import markers, own_words, pages
from docs.generate.context import PageContext
from docs.generate.sources import ROOT

CONFIG = "docs/site.toml"
_ASSETS = {".png", ".webp", ".svg", ".css", ".js", ".ico"}
_MOST_BYTES = 64 * 1024
"""Size of a linked file that the site still shows."""
_LANGUAGES = {".py": "python", ".json": "json", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".sh": "sh"}
_UNLISTED = "---\nsearch:\n  exclude: true\n---\n\n"
"""Front matter of pages that a search should not return: shown files and records."""
_RECORDS = "docs/measurements/"


def assemble(folder: Path) -> None:
    """Fill `folder` with `pages/` and `zensical.toml`, replacing what is there.

    Raises:
        MarkerError: a page has a marker that names no section.
    """
    shutil.rmtree(folder, ignore_errors=True)
    target = folder / "pages"
    target.mkdir(parents=True)
    shutil.copy(ROOT / CONFIG, folder / "zensical.toml")
    for path in sorted((ROOT / "docs").rglob("*")):
        if path.suffix in _ASSETS and path.is_file():
            _write(target, path.relative_to(ROOT / "docs").as_posix(), path.read_bytes())
    _Assembly(target).write_all()


def documentation_pages() -> dict[str, str]:
    """Text of each page of docs/ by its path in the repository."""
    return {path: pages.read(path) for path in pages.markdown_files() if path.startswith("docs/")}


def site_path(path: str) -> str:
    """Path on the site of a file of the repository."""
    inner = path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}"
    if (ROOT / path).is_dir():
        return f"{inner}/index.md"
    return inner if path.startswith("docs/") else f"{inner.removesuffix('.md')}.md"


def _write(folder: Path, path: str, content: str | bytes) -> None:
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content.encode() if isinstance(content, str) else content)


class _Assembly:
    """Pages on their way to the site, and files that they link to and that still have to be shown."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._linked: list[str] = []
        self._words = own_words.own_words(pages.read(own_words.GLOSSARY))

    def write_all(self) -> None:
        texts = documentation_pages()
        homes = markers.pages_of_sections(texts)
        for path, text in texts.items():
            _write(self._target, site_path(path), self._documentation(path, text, homes))
        shown: set[str] = set()
        while self._linked:
            path = self._linked.pop()
            if path not in shown:
                shown.add(path)
                _write(self._target, site_path(path), _UNLISTED + self._shown_file(path))

    def _documentation(self, path: str, text: str, homes: Mapping[str, str]) -> str:
        lines = markers.expand(PageContext(path, homes), text.splitlines())
        front = _UNLISTED if path.startswith(_RECORDS) else ""
        explained = own_words.explain(path, "\n".join(line for _, line in lines) + "\n", self._words)
        return front + self._with_site_links(path, explained)

    def _shown_file(self, path: str) -> str:
        file = ROOT / path
        if file.is_dir():
            names = [name for name in _files(file) if name.stat().st_size <= _MOST_BYTES]
            listed = "\n".join(f"- [{name.relative_to(file)}]({os.path.relpath(name, file)})" for name in names)
            return self._with_site_links(f"{path}/index.md", f"# `{path}/`\n\n{listed}\n")
        if file.suffix == ".md":
            return self._with_site_links(path, file.read_text())
        size = file.stat().st_size
        if size > _MOST_BYTES:
            return f"# `{path}`\n\nThe file has {size:,} bytes; open it in the repository.\n"
        return f"# `{path}`\n\n````{_LANGUAGES.get(file.suffix, 'text')}\n{file.read_text()}\n````\n"

    def _with_site_links(self, path: str, text: str) -> str:
        """The text with every link to another file of the repository leading to its page on the site."""
        source = posixpath.dirname(site_path(path))
        base = posixpath.dirname(path)

        def moved(match: re.Match[str]) -> str:
            address, hash_sign, fragment = match[2].partition("#")
            if not address or re.match(r"[a-z][a-z+.-]*:|/", address):
                return match[0]
            linked = posixpath.normpath(posixpath.join(base, address))
            if not (ROOT / linked).exists():
                return match[0]
            if not linked.startswith("docs/") or (
                (ROOT / linked).is_dir() and not (ROOT / linked / "index.md").exists()
            ):
                self._linked.append(linked)
            return f"{match[1]}{posixpath.relpath(site_path(linked), source)}{hash_sign}{fragment}{match[3]}"

        prose_lines = {number for number, _ in pages.prose(pages.numbered(text))}
        return "".join(
            re.sub(r"(\]\()([^)\s]+)(\)|\s)", moved, line) if number in prose_lines else line
            for number, line in enumerate(text.splitlines(keepends=True), 1)
        )


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in {".pyc", ".png"}:
            yield path
