"""Check the database's schema revision against those that this code can use, and describe the remedy for others.

Code can use its own newest revision, and each later one whose migration names this code's or an older revision as the
oldest code that can use it. During an upgrade, replicas of the former release therefore go on after the migration.
"""

from functools import cache
from pathlib import Path

from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, inspect, select

from shardtune.db.tables.schema import SchemaCompatibilityRow

_SCRIPTS = Path(__file__).parent / "migrations"
_UNRELEASED = frozenset(f"{number:04}" for number in range(1, 26))
"""Schema revisions from before the first release, which `0001_initial` replaced."""


class DatabaseNotMigrated(RuntimeError):
    """Error: the database has another schema revision than this code needs."""


def script_config() -> Config:
    """Return Alembic's configuration, which names the folder with Shardtune's schema revisions."""
    config = Config()
    # Alembic interpolates its options: a lone % in the path of an installation would be an error.
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    return config


def _current_revisions(connection: Connection) -> frozenset[str]:
    """Return the schema revisions recorded in the database; empty for a new database."""
    return frozenset(MigrationContext.configure(connection).get_current_heads())


def revision_problem(connection: Connection, subject: str = "the database") -> str | None:
    """Return a sentence that says why this code cannot use the database, and the remedy; None if it can use it."""
    if _current_revisions(connection) == _head_revisions() or _is_usable(connection):
        return None
    return unknown_revision_problem(connection, subject) or (
        f"{subject} is not at the revision of this version; run `shardtune db upgrade` once, then start again"
    )


def unknown_revision_problem(connection: Connection, subject: str = "the database") -> str | None:
    """Return a sentence that says why no upgrade leads from the database's schema revision to the revision of this
    code; None if an upgrade does."""
    unknown = _current_revisions(connection) - _known_revisions()
    if not unknown or _is_usable(connection):
        return None
    names = ", ".join(sorted(unknown))
    if not unknown <= _UNRELEASED:
        return (
            f"{subject} is at revision {names}, which this version of Shardtune does not know; "
            "install the version that upgraded it, or a later one"
        )
    return (
        f"{subject} is at revision {names} of an unreleased version, and cannot be upgraded; "
        f"{_removal(connection.engine.url)}, and run `shardtune db upgrade`"
    )


def is_of_later_code(connection: Connection) -> bool:
    """Whether a later version upgraded the database to a revision that this code does not know."""
    return not _current_revisions(connection) <= _known_revisions()


def _is_usable(connection: Connection) -> bool:
    """Whether a later version upgraded the database by a migration that declares the schema usable for this code."""
    if not is_of_later_code(connection) or not inspect(connection).has_table(SchemaCompatibilityRow.__tablename__):
        return False
    oldest_code = select(SchemaCompatibilityRow.oldest_code).where(
        SchemaCompatibilityRow.revision.in_(_current_revisions(connection))
    )
    return connection.scalar(oldest_code) in _known_revisions()


def reject_unknown_revision(connection: Connection, subject: str) -> None:
    """Reject a database that no upgrade can bring to this code's revision, before anything in it changes.

    Raises:
        DatabaseNotMigrated: contains the remedy.
    """
    if (problem := unknown_revision_problem(connection, subject)) is not None:
        raise DatabaseNotMigrated(problem)


def _removal(url: URL) -> str:
    """Describe how to remove a database, without naming its path, because the readiness endpoint shows the sentence
    to everybody."""
    if url.get_backend_name() == "sqlite":
        name = Path(url.database or "").name
        # A -wal file that is left behind would be replayed into the new file of the same name.
        return f"move {name} away together with its {name}-wal and {name}-shm"
    return f"drop the database {url.database}, create it again empty"


@cache
def _head_revisions() -> frozenset[str]:
    """Return the newest schema revisions of this code. They are cached, because Alembic runs every migration script
    to determine them, and anybody may send readiness checks."""
    return frozenset(ScriptDirectory.from_config(script_config()).get_heads())


@cache
def _known_revisions() -> frozenset[str]:
    return frozenset(script.revision for script in ScriptDirectory.from_config(script_config()).walk_revisions())
