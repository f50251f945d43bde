"""Checkouts of releases, whose services and workers run side by side: `benchmarks.service.upgrade` uses them."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_VERSIONS = "db/migrations/versions"
_COMPATIBILITY = f"{_VERSIONS}/0003_schema_compatibility.py"
"""Migration from which on a replica can use a schema that a later release has expanded."""
_PARTS = (
    "shardtune",
    "api_schemas",
    "db",
    "service",
    "traces",
    "tuner",
    "workers",
    "benchmarks/service",
    "tests/support",
)
"""Folders that a service and simulated workers import."""


@dataclass(frozen=True)
class Release:
    """A checkout whose code runs in processes of its own."""

    name: str
    """Short hash of the commit, or `working tree`."""
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """Variables under which Python imports everything from the checkout."""
        # Without the safe path the folder in which a command runs, or that of a script, would come first.
        return os.environ | {"PYTHONPATH": str(self.folder), "PYTHONSAFEPATH": "1"}

    @property
    def can_use_newer_schema(self) -> bool:
        """Whether its replicas read from the database whether they can use a later schema."""
        return (self.folder / _COMPATIBILITY).exists()

    def upgrade(self, database_url: str) -> None:
        """Migrate a database to the schema of the release."""
        subprocess.run(
            [sys.executable, "-m", "shardtune", "db", "upgrade"],
            env=self.environment | {"SHARDTUNE_DATABASE_URL": database_url},
            check=True,
            stdout=subprocess.DEVNULL,
        )


def working_tree() -> Release:
    """Release made of the files as they are."""
    return Release("working tree", _ROOT)


def checkout(commit: str, folder: Path) -> Release:
    """Copy the folders of a commit, without touching the repository.

    Raises:
        subprocess.CalledProcessError: git does not know the commit.
    """
    name = _git("rev-parse", "--short", f"{commit}^{{commit}}")
    target = folder / f"release-{name}"
    target.mkdir()
    archive = subprocess.Popen(["git", "archive", name, "--", *_PARTS], cwd=_ROOT, stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", str(target)], stdin=archive.stdout, check=True)
    if archive.wait() != 0:
        raise subprocess.CalledProcessError(archive.returncode, "git archive")
    return Release(name, target)


def former_release() -> str:
    """Oldest code whose replicas can go on with the newest migration's schema: that of the commit before the migration,
    or that of its own commit if it allows no older code."""
    newest = max((_ROOT / _VERSIONS).glob("0*.py"))
    # A migration that is not committed yet has no such commit: then everything committed is older.
    added = _added(f"{_VERSIONS}/{newest.name}")
    first = _added(_COMPATIBILITY)
    if first is None:
        raise ValueError("the repository's history does not reach the schema's compatibility; name a commit by --older")
    if added is None:
        return "HEAD"
    return added if f'oldest_code = "{newest.stem}"' in newest.read_text() else f"{added}^"


def _added(path: str) -> str | None:
    """Commit that added a file, None if none did."""
    return _git("log", "-1", "--format=%H", "--diff-filter=A", "--", path) or None


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=_ROOT, check=True, capture_output=True, text=True).stdout.strip()
