"""Prepare a database before a process uses it: SQLite is migrated automatically, Postgres must already be migrated."""

from shardtune.db.revisions import DatabaseNotMigrated, revision_problem
from shardtune.db.session import Database, upgrade, without_secrets


def prepare_database(database: Database, url: str, migrate: bool = True) -> None:
    """Migrate a SQLite database; reject a Postgres database that is not migrated, because the service migrates only
    SQLite automatically.

    Raises:
        DatabaseNotMigrated: contains the command to run, or the remedy for a database that cannot be upgraded.
    """
    if migrate and database.is_sqlite:
        upgrade(url)
    with database.read_connection() as connection:
        problem = revision_problem(connection, f"database_url ({without_secrets(database.engine.url)})")
    if problem is not None:
        raise DatabaseNotMigrated(problem)
