"""What is done to a database before it is used: SQLite is migrated, any other must be."""

from shardtune.db.session import Database, is_current, upgrade


class DatabaseNotMigrated(RuntimeError):
    """The database is at another revision than the code, and not ours to migrate unasked."""


def prepare_database(database: Database, url: str, migrate: bool = True) -> None:
    """Migrate SQLite; reject a Postgres that is not migrated.

    Raises:
        DatabaseNotMigrated: names the command.
    """
    if migrate and database.is_sqlite:
        upgrade(url)
    if not is_current(database.engine):
        raise DatabaseNotMigrated(
            "the database is not at the revision of this version; run `shardtune db upgrade` once, then start again"
        )
