"""Databases that record a revision of another version of the code."""

from sqlalchemy import text

from shardtune.db.session import make_engine


def at_revision(url: str, revision: str) -> None:
    """Have a database record a revision, as Alembic does."""
    engine = make_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS alembic_version (version_num VARCHAR(32) PRIMARY KEY)"))
        connection.execute(text("DELETE FROM alembic_version"))
        connection.execute(text("INSERT INTO alembic_version VALUES (:revision)"), {"revision": revision})
    engine.dispose()
