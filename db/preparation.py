"""Preparation of a database before a process uses it: SQLite is migrated, Postgres must have been."""

from shardtune.db.revisions import DatabaseNotMigrated, revision_problem
from shardtune.db.session import Database, upgrade, without_secrets


def prepare_database(database: Database, url: str, migrate: bool = True) -> None:
    """Migrate SQLite; reject a Postgres that is not migrated, which the service does not do unasked.

    Raises:
        DatabaseNotMigrated: names the command, or what to do with a database that cannot be upgraded.
    """
    if migrate and database.is_sqlite:
        upgrade(url)
    with database.read_connection() as connection:
        problem = revision_problem(connection, f"database_url ({without_secrets(database.engine.url)})")
    if problem is not None:
        raise DatabaseNotMigrated(problem)
