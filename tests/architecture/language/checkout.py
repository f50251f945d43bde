"""Files of a checkout, by what they are: product code by package, tests, benchmarks, documentation."""

import ast
import subprocess
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tests.architecture.language.code import Binding, Docstring, bindings, docstrings, documented_lines

PRODUCT = ("api_schemas", "db", "traces", "tuner", "workers", "service", "shardtune")
OTHER_CODE = ("tests", "benchmarks")
REVISIONS = "db/migrations/versions/"
RECORDS = {"measurements": "measurements", "records": "measurements", "decisions": "decisions"}
"""Folders of documents that stand for what was measured or decided once: measured apart from the documentation."""
DOCUMENT_FOLDERS = ("docs", "deploy")
QUOTED = ("CODE_OF_CONDUCT.md",)
"""Documents whose text is somebody else's."""


class Source(NamedTuple):
    """Facts of a Python file that several measures count."""

    bindings: list[Binding]
    docstrings: list[Docstring]
    documented: frozenset[int]
    """Lines of strings that are statements."""


class Checkout:
    """Tracked and new files of a git checkout; files of any folder where git does not know it."""

    def __init__(self, root: Path, prefix: str = "") -> None:
        self.root = root.resolve()
        self.prefix = prefix
        self._sources: dict[str, Source] = {}

    @cached_property
    def files(self) -> list[str]:
        command = ["git", "-C", str(self.root), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        listing = subprocess.run(command, capture_output=True, text=True, check=False)
        if listing.returncode == 0:
            names = sorted(set(filter(None, listing.stdout.split("\0"))))
        else:
            names = sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file())
        chosen = (name for name in names if name.startswith(self.prefix))
        return [name for name in chosen if name.endswith((".py", ".md")) and self._is_file(name)]

    def _is_file(self, name: str) -> bool:
        # A link is measured where it points to: shardtune/service is a link to service/.
        path = self.root / name
        return path.is_file() and not path.is_symlink()

    def text(self, name: str) -> str:
        return (self.root / name).read_text()

    def source(self, name: str) -> Source:
        """Facts of a Python file, read once for all measures."""
        if name not in self._sources:
            # Walking the tree takes longer than parsing it, and the trees of all files are a million objects.
            nodes = list(ast.walk(ast.parse(self.text(name))))
            self._sources[name] = Source(sorted(bindings(nodes)), sorted(docstrings(nodes)), documented_lines(nodes))
        return self._sources[name]

    def package(self, package: str) -> list[str]:
        """Python files of one folder at the top, without migration revisions."""
        inside = (name for name in self.files if name.startswith(f"{package}/") and name.endswith(".py"))
        return [name for name in inside if not name.startswith(REVISIONS)]

    def code(self, packages: tuple[str, ...] = PRODUCT) -> list[str]:
        return [name for package in packages for name in self.package(package)]

    def documents(self) -> dict[str, list[str]]:
        """Markdown files by group: docs, measurements, decisions, changelog."""
        groups: dict[str, list[str]] = {"docs": [], "measurements": [], "decisions": [], "changelog": []}
        for name in self.files:
            path = PurePosixPath(name)
            if path.suffix != ".md" or path.name in QUOTED:
                continue
            if path.parent == PurePosixPath(".") or path.parts[0] in DOCUMENT_FOLDERS:
                group = next((RECORDS[part] for part in path.parts[:-1] if part in RECORDS), "docs")
                groups["changelog" if path.name == "CHANGELOG.md" else group].append(name)
        return groups
